"""The line by which the engine's log proves that eviction was in force; no vLLM is imported.

The plugin writes it once per server, where the scheduler makes the manager that frees blocks; the
harness looks for it after the start. Without it a server that fell back to full attention would
pass for one that evicts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from harness.errors import ServerStartError
from harness.specs.eviction import VARIABLE, AnyRule, EvictionRule, SnapKvRule, rule_from_env
from harness.units import Tokens

_LINE = re.compile(r"KV eviction in force: sinks (\d+) tokens \(\d+ blocks?\), window (\d+) tokens")
_SNAPKV_LINE = re.compile(
    r"KV eviction in force: SnapKV keeps (\d+) tokens \(\d+ blocks?\) of each prompt, chosen by "
    r"its last (\d+),"
)


def in_force_line(
    sinks: Tokens, sink_blocks: int, window: Tokens, block: Tokens, most_blocks: int | None
) -> str:
    """The sentence that the plugin logs."""
    held = "" if most_blocks is None else f", at most {most_blocks} blocks per request"
    return (
        f"KV eviction in force: sinks {sinks} tokens ({_blocks(sink_blocks)}), window {window} "
        f"tokens, blocks of {block} tokens{held}; what lies between is freed, so answers to longer "
        "prompts differ from full attention"
    )


def snapkv_line(rule: SnapKvRule, kept_blocks: int, block: Tokens) -> str:
    """The same for the rule by score."""
    return (
        f"KV eviction in force: SnapKV keeps {rule.budget} tokens ({_blocks(kept_blocks)}) of each "
        f"prompt, chosen by its last {rule.observe}, per layer and KV head, blocks of {block} "
        "tokens; the rest is freed once the prompt is computed, so answers to longer prompts "
        "differ from full attention"
    )


def _blocks(count: int) -> str:
    return "1 block" if count == 1 else f"{count} blocks"


def _told(log: str) -> list[AnyRule]:
    sinks = [EvictionRule(int(sinks), int(window)) for sinks, window in _LINE.findall(log)]
    snapkv = [SnapKvRule(int(kept), int(last)) for kept, last in _SNAPKV_LINE.findall(log)]
    return [*sinks, *snapkv]


def require_in_force(env: Mapping[str, str], log: str) -> None:
    """Check that a server which was asked to evict says that it does, by the rule asked for.

    Raises:
        ServerStartError: it does not; whatever it serves is not what was asked for.
        InputError: ``env`` asks for something that is no rule.
    """
    rule = rule_from_env(env)
    if rule is None:
        return
    found = _told(log)
    if not found or any(told != rule for told in found):
        raise ServerStartError(
            f"the server was asked for {VARIABLE}={rule} but its log does not say that the rule "
            "is in force",
            next_move="the engine's Python needs kvbench installed beside vLLM (`make setup`), and "
            "VLLM_PLUGINS must not leave kvbench_eviction out",
            evidence=f"rules found in the log: {'; '.join(map(str, found)) or 'none'}",
            kind="engine",
        )
