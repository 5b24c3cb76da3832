"""The line by which the engine's log proves that eviction was in force; no vLLM is imported.

The plugin writes it once per server, where the scheduler makes the manager that frees blocks; the
harness looks for it after the start. Without it a server that fell back to full attention would
pass for one that evicts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from harness.errors import ServerStartError
from harness.specs.eviction import VARIABLE, rule_from_env
from harness.units import Tokens

_LINE = re.compile(r"KV eviction in force: sinks (\d+) tokens \(\d+ blocks?\), window (\d+) tokens")


def in_force_line(
    sinks: Tokens, sink_blocks: int, window: Tokens, block: Tokens, most_blocks: int | None
) -> str:
    """The sentence that the plugin logs."""
    held = "" if most_blocks is None else f", at most {most_blocks} blocks per request"
    blocks = "1 block" if sink_blocks == 1 else f"{sink_blocks} blocks"
    return (
        f"KV eviction in force: sinks {sinks} tokens ({blocks}), window {window} tokens, "
        f"blocks of {block} tokens{held}; what lies between is freed, so answers to longer "
        "prompts differ from full attention"
    )


def require_in_force(env: Mapping[str, str], log: str) -> None:
    """Check that a server which was asked to evict says that it does, by the rule asked for.

    Raises:
        ServerStartError: it does not; whatever it serves is not what was asked for.
        InputError: ``env`` asks for something that is no rule.
    """
    rule = rule_from_env(env)
    if rule is None:
        return
    found = [(int(sinks), int(window)) for sinks, window in _LINE.findall(log)]
    if not found or any(pair != (rule.sinks, rule.window) for pair in found):
        raise ServerStartError(
            f"the server was asked for {VARIABLE}={rule} but its log does not say that the rule "
            "is in force",
            next_move="the engine's Python needs kvbench installed beside vLLM (`make setup`), and "
            "VLLM_PLUGINS must not leave kvbench_eviction out",
            evidence=f"rules found in the log: {found or 'none'}",
            kind="engine",
        )
