"""Whether a value is plain: one that every later stage can store, print and pass on.

Method: walk the parsed values and name the first that is not. Text may hold no control
characters (a name ends up in terminals, logs and pages), no halves of surrogate pairs (no file
and no command line can hold them) and no marks that turn the reading direction; numbers are
finite and fit 64 bits; nothing is nested without end. Tokens of well-known services are refused
because all that stands in a scenario is stored with the results.

Not covered: what a key means; that is the schema's business.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any

MAX_DEPTH = 40
MAX_INTEGER = 2**63 - 1
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ufeff\ufffe\uffff]")
_SURROGATE = re.compile("[\ud800-\udfff]")
#: Embeddings, overrides, isolates and direction marks; source: Unicode annex 9.
_DIRECTION = re.compile("[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
_SERVICE_TOKEN = re.compile(r"\b(?:hf_[A-Za-z0-9]{20,}|sk-[A-Za-z0-9_-]{20,})")

Path = tuple[str | int, ...]


def faults(value: Any, path: Path = ()) -> Iterator[tuple[str, Path]]:
    """Yield (what is wrong, where) for every part of ``value`` that is not plain."""
    if len(path) > MAX_DEPTH:
        yield f"nested more than {MAX_DEPTH} levels deep", path
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from ((f"in this key: {fault}", path) for fault in _text_faults(str(key)))
            yield from faults(item, (*path, str(key)))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from faults(item, (*path, index))
    else:
        yield from ((fault, path) for fault in _scalar_faults(value))


def _scalar_faults(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield from _text_faults(value)
    elif isinstance(value, float):
        if not math.isfinite(value):
            yield f"{value} is no number that can be measured or stored"
    elif isinstance(value, int):
        if abs(value) > MAX_INTEGER:
            yield "the number does not fit 64 bits"
    elif value is not None:
        yield f"a value of the YAML type {type(value).__name__} has no meaning here"


def _text_faults(text: str) -> Iterator[str]:
    for pattern, what in (
        (_CONTROL, "a control character"),
        (_SURROGATE, "half of a surrogate pair, which no file can hold"),
        (_DIRECTION, "a mark that turns the reading direction"),
    ):
        if found := pattern.search(text):
            yield f"the text holds U+{ord(found[0]):04X}, {what}"
    if _SERVICE_TOKEN.search(text):
        yield (
            "the text looks like an access token, and a scenario is stored with the results: "
            "export it in your shell instead"
        )
