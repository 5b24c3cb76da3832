"""The rule of token eviction that a server is asked for through its environment.

``KVBENCH_EVICTION=sinks=32,window=512`` keeps the first 32 tokens of a request and its 512 most
recent ones. Both the plugin inside the engine and the predictions read the rule here. Not covered:
what the rule means in blocks (``engines.eviction`` does it, ``theory.eviction`` predicts it).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from harness.errors import InputError, did_you_mean
from harness.units import Tokens

#: The environment variable that asks for eviction; unset or empty means none.
VARIABLE = "KVBENCH_EVICTION"
_KEYS = ("sinks", "window")
_EXAMPLE = f"{VARIABLE}=sinks=32,window=512"


@dataclass(frozen=True, slots=True)
class EvictionRule:
    """Keep the first ``sinks`` tokens of a request and the ``window`` most recent ones.

    Both are rounded up to whole blocks by the engine's allocator; ``sinks`` may be 0.
    """

    sinks: Tokens
    window: Tokens

    def __str__(self) -> str:
        return f"sinks={self.sinks},window={self.window}"


def parse_rule(text: str) -> EvictionRule:
    """Read ``sinks=S,window=W``; both keys are required, in any order.

    Raises:
        InputError: an unknown, missing or repeated key, or a value that is no token count.
    """
    values: dict[str, Tokens] = {}
    for part in text.split(","):
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or key not in _KEYS:
            raise _refused(f"{part.strip()!r} is no part of an eviction rule", key)
        if key in values:
            raise _refused(f"{key} is given twice")
        values[key] = _count(key, value)
    missing = [key for key in _KEYS if key not in values]
    if missing:
        raise _refused(f"the eviction rule {text!r} lacks {' and '.join(missing)}")
    return EvictionRule(**values)


def rule_from_env(env: Mapping[str, str]) -> EvictionRule | None:
    """The rule that an environment asks for; None if it asks for none."""
    text = env.get(VARIABLE, "").strip()
    return parse_rule(text) if text else None


def _count(key: str, value: str) -> Tokens:
    least = 1 if key == "window" else 0
    if not value.isascii() or not value.isdigit() or int(value) < least:
        raise _refused(f"{key}={value} is no count of at least {least} tokens")
    return int(value)


def _refused(what: str, key: str = "") -> InputError:
    near = did_you_mean(key, _KEYS)
    return InputError(
        f"{what}; {near}" if near else what,
        where=VARIABLE,
        legal=[f"{key}=<tokens>" for key in _KEYS],
        next_move=f"write it as in {_EXAMPLE}",
    )
