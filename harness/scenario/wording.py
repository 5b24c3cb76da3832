"""What pydantic found, in the words of this program: which key, what is legal, what was meant.

Method: of several findings the unknown key is told before the missing one beside it, because a
misspelt key is both; limits are told as the schema states them. Not covered: where a key stands
in the file (``load``), and what the models say themselves (``schema``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from harness.errors import did_you_mean

#: How much of a wrong value is quoted.
QUOTED = 100
#: Pydantic's kinds of finding, and what is said of the key instead.
_MUST_BE: Mapping[str, str] = MappingProxyType(
    {
        "greater_than_equal": "must be at least {ge}",
        "greater_than": "must be above {gt}",
        "less_than_equal": "must be at most {le}",
        "less_than": "must be below {lt}",
        "int_type": "must be a whole number",
        "int_from_float": "must be a whole number",
        "float_type": "must be a number",
        "finite_number": "must be a finite number",
        "string_type": "must be text",
        "bool_type": "must be true or false",
        "dict_type": "must be a mapping",
        "list_type": "must be a list",
        "tuple_type": "must be a list",
        "model_type": "must be a mapping",
        "literal_error": "must be {expected}",
        "string_too_long": "must have at most {max_length} characters",
    }
)
#: What other load generators call the keys of ours.
_CALLED_ELSEWHERE: Mapping[str, str] = MappingProxyType(
    {
        name: ours
        for ours, names in {
            "context_tokens": ("input_tokens", "prompt_tokens", "input_len", "prompt_len"),
            "output_tokens": ("max_tokens", "output_len", "answer_tokens"),
            "num_prompts": ("num_requests", "requests", "prompts"),
            "concurrency": ("max_concurrency", "clients", "users"),
            "request_rate": ("rate", "rps", "qps"),
        }.items()
        for name in names
    }
)


def told_first(errors: Sequence[Any]) -> Any:
    """Which finding to tell: an unknown key, if the first finding is a missing one beside it."""
    first = errors[0]
    if first["type"] != "missing":
        return first
    beside = (
        e for e in errors if e["type"] == "extra_forbidden" and e["loc"][:-1] == _above(first)
    )
    return next(beside, first)


def _above(error: Any) -> tuple[int | str, ...]:
    return tuple(error["loc"][:-1])


def missing_beside(error: Any, errors: Sequence[Any]) -> tuple[str, ...]:
    """The keys that are missing where this finding is."""
    return tuple(
        str(e["loc"][-1]) for e in errors if e["type"] == "missing" and _above(e) == _above(error)
    )


def meant(wrong: str, legal: Sequence[str], missing: Sequence[str]) -> str | None:
    """A suggestion for an unknown key, and what is missing beside it."""
    ours = _CALLED_ELSEWHERE.get(wrong)
    # A key that is missing is likelier meant than one that stands there already.
    hint = (
        f"did you mean {ours!r}?"
        if ours in legal
        else did_you_mean(wrong, missing) or did_you_mean(wrong, legal)
    )
    lacking = f"missing here: {', '.join(missing)}" if missing else None
    return "; ".join(part for part in (hint, lacking) if part) or None


def explain(error: Any, key: str) -> str:
    """One finding of pydantic about ``key``, in a sentence."""
    kind, given = error["type"], error.get("input")
    if kind == "extra_forbidden":
        return f"there is no key {key!r} here"
    if kind == "missing":
        return f"the key {key!r} is missing"
    if kind in _MUST_BE:
        message = f"{key} {_MUST_BE[kind].format(**error.get('ctx', {}))}"
    else:
        message = str(error["msg"]).removeprefix("Value error, ")
    if kind == "value_error" or isinstance(given, dict | list):
        return message
    quoted = repr(given)
    return f"{message} (given: {quoted if len(quoted) <= QUOTED else quoted[:QUOTED] + '…'})"
