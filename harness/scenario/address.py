"""What is wrong with the URL of a server, before anything is measured for it.

Method: a URL is stored with the results and handed to an HTTP client much later, so whatever the
one must not keep (a name, a password, a query, a fragment) or the other can't use (another scheme,
no host, a port beyond 65,535, blanks, brackets without end) is told at once.

Not covered: whether anybody answers there.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import SplitResult, urlsplit

EXAMPLE = "http://host:port/v1"
#: Of a host's name, or of an address between brackets.
_HOST = re.compile(r"[A-Za-z0-9_.~-]+|[0-9A-Fa-f:.]+(%25[A-Za-z0-9_.~-]+)?")
_QUOTED = 100


@dataclass(frozen=True, slots=True)
class AddressFault:
    """What is wrong, what would be right, and what to do."""

    what: str
    legal: Sequence[str] | None = None
    next_move: str | None = None


def address_fault(url: Any, of: str, key_variable: str) -> AddressFault | None:
    """Why ``url`` is no URL of a server (``of`` says whose) that can be stored; None if it is."""
    parts = _parts(url)
    if parts is None or parts.scheme not in ("http", "https"):
        quoted = repr(url)
        quoted = quoted if len(quoted) <= _QUOTED else quoted[:_QUOTED] + "…"
        return AddressFault(f"{quoted} is no URL of a {of}", legal=[EXAMPLE])
    if "@" in parts.netloc or parts.query or parts.fragment or url.endswith(("?", "#")):
        return AddressFault(
            "a URL with a name, password, query or fragment would be stored with the results",
            next_move=f"export the key as {key_variable} and give the bare URL",
        )
    return None


def _parts(url: Any) -> SplitResult | None:
    """The parts of a URL; None if it can't be one (also: no such port, a blank inside)."""
    if not isinstance(url, str) or not url.isascii() or not url.isprintable() or " " in url:
        return None
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return None
    host = parts.hostname or ""
    return parts if _HOST.fullmatch(host) and (port is None or port > 0) else None
