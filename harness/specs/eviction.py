"""The rule of token eviction that a server is asked for through its environment.

``KVBENCH_EVICTION=sinks=32,window=512`` keeps the first 32 tokens of a request and its 512 most
recent ones. ``KVBENCH_EVICTION=snapkv=512`` keeps 512 tokens of each prompt, those that its last
tokens attend to most (SnapKV, arXiv 2404.14469), and all that is decoded. Both the plugin inside
the engine and the predictions read the rule here. Not covered: what a rule means in blocks
(``engines.eviction`` does it, ``theory.eviction`` and ``theory.snapkv`` predict it).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from harness.errors import InputError, did_you_mean
from harness.units import Tokens

#: The environment variable that asks for eviction; unset or empty means none.
VARIABLE = "KVBENCH_EVICTION"
_SINKS_KEYS = ("sinks", "window")
_SNAPKV_KEYS = ("snapkv", "observe")
_KEYS = (*_SINKS_KEYS, *_SNAPKV_KEYS)
_EXAMPLE = f"{VARIABLE}=sinks=32,window=512 or {VARIABLE}=snapkv=512"
#: The observation window of SnapKV's authors' code and of kvpress.
_OBSERVE = 64
#: As many tokens as any other count of a scenario may have; the engine's are 32-bit numbers.
_MOST_TOKENS = 100_000_000


@dataclass(frozen=True, slots=True)
class EvictionRule:
    """Keep the first ``sinks`` tokens of a request and the ``window`` most recent ones.

    Both are rounded up to whole blocks by the engine's allocator; ``sinks`` may be 0.
    """

    sinks: Tokens
    window: Tokens

    def __str__(self) -> str:
        return f"sinks={self.sinks},window={self.window}"


@dataclass(frozen=True, slots=True)
class SnapKvRule:
    """Keep ``budget`` tokens of each prompt per layer and KV head, and all that is decoded.

    The prompt's last ``observe`` tokens stay, and of those before them the ones that they attend
    to most. ``budget`` is rounded up to whole blocks by the engine's allocator.
    """

    budget: Tokens
    observe: Tokens = _OBSERVE

    def __str__(self) -> str:
        return f"snapkv={self.budget},observe={self.observe}"


AnyRule: TypeAlias = EvictionRule | SnapKvRule


def parse_rule(text: str) -> AnyRule:
    """Read ``sinks=S,window=W`` (both required) or ``snapkv=B`` with ``observe=O`` if wanted.

    Raises:
        InputError: an unknown, missing or repeated key, keys of both rules, or a value that is no
            token count.
    """
    values: dict[str, Tokens] = {}
    for part in text.split(","):
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or key not in _KEYS:
            raise _refused(f"{part.strip()[:80]!r} is no part of an eviction rule", key)
        if key in values:
            raise _refused(f"{key} is given twice")
        values[key] = _count(key, value)
    return _snapkv(text, values) if set(values) & set(_SNAPKV_KEYS) else _sinks(text, values)


def rule_from_env(env: Mapping[str, str]) -> AnyRule | None:
    """The rule that an environment asks for; None if it asks for none."""
    text = env.get(VARIABLE, "").strip()
    return parse_rule(text) if text else None


def _sinks(text: str, values: Mapping[str, Tokens]) -> EvictionRule:
    missing = [key for key in _SINKS_KEYS if key not in values]
    if missing:
        raise _refused(f"the eviction rule {text[:80]!r} lacks {' and '.join(missing)}")
    return EvictionRule(**values)


def _snapkv(text: str, values: Mapping[str, Tokens]) -> SnapKvRule:
    mixed = [key for key in values if key in _SINKS_KEYS]
    if mixed:
        raise _refused(
            f"the eviction rule {text[:80]!r} mixes two rules: {' and '.join(mixed)} too"
        )
    if "snapkv" not in values:
        raise _refused(f"the eviction rule {text[:80]!r} lacks snapkv")
    rule = SnapKvRule(values["snapkv"], values.get("observe", _OBSERVE))
    if rule.budget <= rule.observe:
        raise _refused(
            f"snapkv={rule.budget} must be more than the {rule.observe} tokens that observe and "
            "stay in any case"
        )
    return rule


def _count(key: str, value: str) -> Tokens:
    least = 0 if key == "sinks" else 1
    # Its length is looked at first: Python reads no number of thousands of digits.
    count = int(value) if re.fullmatch("[0-9]{1,9}", value) else -1
    if not least <= count <= _MOST_TOKENS:
        raise _refused(f"{key}={value[:80]} is no count from {least} to {_MOST_TOKENS:,} tokens")
    return count


def _refused(what: str, key: str = "") -> InputError:
    near = did_you_mean(key, _KEYS) if key not in _KEYS else None
    return InputError(
        f"{what}; {near}" if near else what,
        where=VARIABLE,
        legal=[f"{key}=<tokens>" for key in _KEYS],
        next_move=f"write it as in {_EXAMPLE}",
    )
