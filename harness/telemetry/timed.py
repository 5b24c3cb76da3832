"""HTTP connections whose time limit holds for the whole answer, not for each read of it.

Method: before every read from the socket its timeout is set to what is left, counted from when the
request is out. So neither a head nor a body that comes a byte at a time holds anybody up. Whatever
is read through these classes is otherwise http.client's own.

Not covered: the time to look up a name and to connect, for which the limit holds once more each.
"""

from __future__ import annotations

import http.client
import io
import socket
import time
from collections.abc import Callable
from typing import Any

from harness.units import Seconds


class _TimedReads(io.RawIOBase):
    """The bytes of a socket until a moment on the monotonic clock."""

    def __init__(self, sock: socket.socket, limit_s: Seconds) -> None:
        self._sock = sock
        self._raw = sock.makefile("rb", buffering=0)
        self._deadline = time.monotonic() + limit_s

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        left_s = self._deadline - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("timed out")
        self._sock.settimeout(left_s)
        return self._raw.readinto(buffer)

    def close(self) -> None:
        self._raw.close()
        super().close()


def _timed(limit_s: Seconds) -> Callable[..., http.client.HTTPResponse]:
    class TimedResponse(http.client.HTTPResponse):
        def __init__(self, sock: socket.socket, *args: Any, **kwargs: Any) -> None:
            super().__init__(sock, *args, **kwargs)
            untimed, self.fp = self.fp, io.BufferedReader(_TimedReads(sock, limit_s))
            untimed.close()

    return TimedResponse


def connection(
    host: str, port: int | None = None, *, secure: bool = False, timeout: Seconds
) -> http.client.HTTPConnection:
    """A connection, opened by its first request, each of whose answers is whole in ``timeout``.

    Reading a later one raises TimeoutError, which is an OSError.
    """
    kind = http.client.HTTPSConnection if secure else http.client.HTTPConnection
    opened = kind(host, port, timeout=timeout)
    opened.response_class = _timed(timeout)  # type: ignore[assignment]
    return opened
