"""Whether a flag is one of the pinned engine's, asked before anything is started.

Method: the long flags of ``vllm serve`` ship as data (``harness/data/vllm_flags.json``, made by
``tests/data/vllm_flags.py``, held against the installed engine by a test), each with how it is
given and the values it is restricted to. A flag, or a value, that only another version knows goes
through where the scenario lists its name under ``unchecked_flags``. Not covered: types of values
other than on and off, and what the engine refuses once it knows the model and the device.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from importlib.resources import files
from types import MappingProxyType
from typing import Any

from harness.errors import did_you_mean
from harness.specs.kv_dtype import kv_dtype_hint

#: The key of a scenario that lists flags which are passed on as they are.
UNCHECKED = "unchecked_flags"
#: Flags that are a share or a count, and the values they can have: above the first (or at it, if
#: the third says so), up to the second. Source: vLLM 0.32.0, ``config/cache.py`` and
#: ``config/offload.py``, whose fields refuse others.
_RANGES: Mapping[str, tuple[float, float, bool]] = MappingProxyType(
    {
        "gpu_memory_utilization": (0, 1, False),
        "cpu_offload_gb": (0, math.inf, True),
    }
)
#: Keys of config.json that are easily taken for flags; the flags nearest in spelling do other,
#: if not opposite, things (``disable_sliding_window``).
_OF_THE_MODEL = (
    "sliding_window",
    "max_position_embeddings",
    "num_attention_heads",
    "num_key_value_heads",
    "rope_scaling",
    "rope_theta",
)


@dataclass(frozen=True, slots=True)
class FlagFault:
    """What is wrong with a flag, what would be right, and how to have it all the same."""

    what: str
    legal: tuple[str, ...] | None
    next_move: str


@cache
def _known() -> tuple[str, Mapping[str, Mapping[str, Any]]]:
    text = files("harness.data").joinpath("vllm_flags.json").read_text(encoding="utf-8")
    read = json.loads(text)
    return str(read["vllm"]), MappingProxyType(read["flags"])


def flag_fault(name: str, value: Any, unchecked: Sequence[str] = ()) -> FlagFault | None:
    """What the pinned engine's parser would say against a flag; None if nothing is known.

    ``compilation_config.mode`` is judged by what stands before the dot.
    """
    base, _, inside = name.partition(".")
    if name in unchecked or base in unchecked:
        return None
    version, known = _known()
    if base not in known:
        return _unknown(base, version, known)
    if value is None or inside:
        return None
    return _wrong_form(base, value, known[base], version) or _out_of_range(base, value)


def _unknown(name: str, version: str, known: Mapping[str, Any]) -> FlagFault:
    denied = name.removeprefix("no_")
    if denied != name and denied in known:
        return FlagFault(
            f"{name!r} is the denial of a flag", (f"{denied}: false",), "write the flag itself"
        )
    if name in _OF_THE_MODEL:
        return FlagFault(
            f"{name!r} is a key of the model's config.json, and no flag of vLLM {version}",
            None,
            f"write `hf_overrides: {{{name}: …}}` (scenarios/sliding_window.yaml has one)",
        )
    near = get_close_matches(name, list(known), n=5, cutoff=0.6)
    hint = did_you_mean(name, known)
    return FlagFault(
        f"vLLM {version} has no flag {name!r}",
        tuple(near) or None,
        f"{hint or ''} {_all_the_same(name)}".strip(),
    )


def _wrong_form(name: str, value: Any, entry: Mapping[str, Any], version: str) -> FlagFault | None:
    takes, choices = entry["takes"], entry.get("choices")
    if takes == "switch" and not isinstance(value, bool):
        return FlagFault(f"{name} is a switch (given: {value!r:.100})", ("true", "false"), "")
    if takes == "on" and value is not True:
        return FlagFault(
            f"{name} can be set, not denied (given: {value!r:.100})", ("true",), "or leave it out"
        )
    if takes == "value" and isinstance(value, bool):
        return FlagFault(f"{name} needs a value (given: {value!r})", choices, "")
    wrong = _not_among(value, choices)
    if wrong is None:
        return None
    legal = [str(choice) for choice in choices or ()]
    find = kv_dtype_hint if name == "kv_cache_dtype" else did_you_mean
    return FlagFault(
        f"vLLM {version} knows no {name} {str(wrong)[:100]!r}",
        tuple(legal),
        # Who has mistyped a name is not to be told how to get it past the check.
        find(str(wrong), legal) or _all_the_same(name),
    )


def _not_among(value: Any, choices: Sequence[Any] | None) -> Any:
    """The first given value that is no choice; None if there is none, or nothing to choose."""
    if choices is None:
        return None
    given = value if isinstance(value, list) else [value]
    legal = {str(choice) for choice in choices}
    return next((item for item in given if str(item) not in legal), None)


def _out_of_range(name: str, value: Any) -> FlagFault | None:
    if name not in _RANGES:
        return None
    least, most, closed = _RANGES[name]
    number = isinstance(value, int | float) and not isinstance(value, bool)
    inside = number and (least < value <= most or (closed and value == least))
    if inside and math.isfinite(value):
        return None
    if math.isinf(most):
        legal = f"a number from {least:g} up"
    else:
        legal = f"a share above {least:g}, up to {most:g}"
    hint = f"did you mean {value / 100:g}?" if number and 1 < value <= 100 and most == 1 else ""
    return FlagFault(f"{name} is {value!r:.100}", (legal,), hint)


def _all_the_same(name: str) -> str:
    return f"If the engine that you run knows it, list it: `{UNCHECKED}: [{name}]`"
