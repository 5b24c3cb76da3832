"""What a variant is called: its strategy, the family of it, what it takes to have it.

Method: the two sides' settings are compared as the scenario stored them, never the variants'
names. The first difference that makes a strategy names it: emulation, eviction, offloading, then
the model's shape, the KV dtype, prefix caching. Not covered: what a strategy buys
(``analysis.scoreboard``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from harness.scenario.schema import stored_settings
from harness.specs.eviction import VARIABLE

Effort = Literal["flags", "model change", "plugin"]
Kind = Literal["layout", "paging", "serving", "offload", "reference", "other"]

#: What kind of strategy a row is, whatever its dtype, number of heads, length or rule.
Family = Literal[
    "paging",
    "token eviction",
    "CPU offloading",
    "KV heads",
    "sliding window",
    "KV dtype",
    "prefix sharing",
    "reference cache",
    "other settings",
]


@dataclass(frozen=True, slots=True)
class ServerSetup:
    """How one side was started: its flags, its environment, what it emulates, its own model."""

    flags: Mapping[str, Any]
    env: Mapping[str, str]
    emulate: str | None = None
    model: str | None = None

    def override(self, key: str) -> Any:
        """A field that ``hf_overrides`` sets; None where it does not."""
        overrides = self.flags.get("hf_overrides")
        return overrides.get(key) if isinstance(overrides, dict) else None


@dataclass(frozen=True, slots=True)
class Strategy:
    """``name`` is what a reader sees, ``family`` what rows are told apart by.

    ``kind`` is how memory and capacity are read.
    """

    name: str
    family: Family
    kind: Kind


def setup_of(scenario: Mapping[str, Any], variant: str) -> ServerSetup:
    """The setup that a stored scenario gives to ``variant``."""
    flags, env = stored_settings(scenario, variant)
    own = (scenario.get("variants") or {}).get(variant) or {}
    return ServerSetup(flags, env, own.get("emulate"), own.get("model"))


def strategy_of(mine: ServerSetup, theirs: ServerSetup, engine: str = "vllm") -> Strategy:
    """What makes ``mine`` another strategy than ``theirs``, the baseline's."""
    if engine == "reference":
        cache, before = (str(side.flags.get("cache") or "growing") for side in (mine, theirs))
        return Strategy(f"{cache} cache instead of {before}", "reference cache", "reference")
    if mine.emulate != theirs.emulate:
        name = "paging" if mine.emulate is None else "preallocation"
        return Strategy(name, "paging", "paging")
    if rule := mine.env.get(VARIABLE):
        return Strategy(f"token eviction ({rule})", "token eviction", "serving")
    if mine.flags.get("kv_offloading_size") and not theirs.flags.get("kv_offloading_size"):
        return Strategy("CPU offloading", "CPU offloading", "offload")
    if (heads := mine.override("num_key_value_heads")) != theirs.override("num_key_value_heads"):
        return Strategy(f"{heads} KV head{'s' if heads != 1 else ''}", "KV heads", "layout")
    if (window := mine.override("sliding_window")) != theirs.override("sliding_window"):
        return Strategy(f"sliding window of {window}", "sliding window", "layout")
    if (dtype := mine.flags.get("kv_cache_dtype")) != theirs.flags.get("kv_cache_dtype"):
        return Strategy(f"KV dtype {dtype}", "KV dtype", "layout")
    shared = mine.flags.get("enable_prefix_caching")
    if shared != theirs.flags.get("enable_prefix_caching"):
        name = "prefix sharing" if shared else "no prefix sharing"
        return Strategy(name, "prefix sharing", "serving")
    return Strategy("other settings", "other settings", "other")


def effort_of(mine: ServerSetup, theirs: ServerSetup) -> Effort:
    """What it takes to have ``mine``: other flags, another model, or the plugin."""
    if mine.env.get(VARIABLE) != theirs.env.get(VARIABLE):
        return "plugin"
    changed = mine.flags.get("hf_overrides") != theirs.flags.get("hf_overrides")
    return "model change" if changed or mine.model != theirs.model else "flags"


def change_of(mine: ServerSetup, theirs: ServerSetup) -> str:
    """What is set differently, in the words of a scenario."""
    if mine.emulate != theirs.emulate:
        return "vLLM's own way; the other side is emulated" if mine.emulate is None else "emulated"
    own, other = _flat(mine.flags), _flat(theirs.flags)
    words = [f"{key}={value}" for key, value in own.items() if other.get(key) != value]
    words += [f"{key}={value}" for key, value in mine.env.items() if theirs.env.get(key) != value]
    if mine.model != theirs.model and mine.model is not None:
        words.append(f"model={mine.model}")
    return ", ".join(words) or "nothing"


def _flat(flags: Mapping[str, Any]) -> dict[str, Any]:
    """Flags with ``hf_overrides`` spread out: one change is told as one field."""
    overrides = flags.get("hf_overrides")
    spread = overrides.items() if isinstance(overrides, dict) else ()
    plain = {key: value for key, value in flags.items() if key != "hf_overrides"}
    return plain | {f"hf_overrides.{key}": value for key, value in spread}
