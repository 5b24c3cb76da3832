"""A bound on what a foreign server may send in one reply: so many bytes, in so many seconds.

Method: a hook of openai's HTTP client that puts a counting stream in the place of a response's
own, before anything of the body is read. The time limit of a client alone is one per read, which
a server that sends a byte a second never meets. A compressed body is refused, since a few
kilobytes of it can become gigabytes; nothing asks for one (``NO_COMPRESSION``).

Not covered: headers that drip, to which the limit per read applies.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from harness.errors import EngineError
from harness.units import Bytes, Seconds, format_bytes

NO_COMPRESSION = {"Accept-Encoding": "identity"}


class UnreadableReply(EngineError):
    """A reply that is not read to its end, and why; asking again would bring the same."""


def http_library() -> Any:
    """The module that openai speaks HTTP with: httpx, or what its later versions have instead."""
    from openai import DefaultHttpxClient

    return sys.modules[DefaultHttpxClient.__mro__[1].__module__.partition(".")[0]]


def within(limit_s: Seconds, most_bytes: Bytes) -> Callable[[Any], None]:
    """A hook for responses that lets a body be read for ``limit_s`` and up to ``most_bytes``.

    Reading then raises the library's ``ReadTimeout``, or ``UnreadableReply``.
    """
    http = http_library()
    base: Any = http.SyncByteStream

    class Bounded(base):  # type: ignore[misc]  # known at run time alone
        def __init__(self, inner: Any, request: Any) -> None:
            self._inner = inner
            self._request = request

        def __iter__(self) -> Iterator[bytes]:
            until, read = time.monotonic() + limit_s, 0
            for part in self._inner:
                read += len(part)
                if read > most_bytes:
                    raise UnreadableReply(f"the reply is larger than {format_bytes(most_bytes)}")
                if time.monotonic() > until:
                    raise http.ReadTimeout("the body has no end", request=self._request)
                yield part

        def close(self) -> None:
            self._inner.close()

    def bound(response: Any) -> None:
        encoding = response.headers.get("content-encoding", "identity").strip().lower()
        if encoding not in ("", "identity"):
            response.close()
            raise UnreadableReply("the reply is compressed, which nobody asked for")
        response.stream = Bounded(response.stream, response.request)

    return bound
