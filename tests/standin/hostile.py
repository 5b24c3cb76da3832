"""A server within the test's process that answers with whatever bytes a test gives it.

The stand-in speaks the protocol; this one breaks it. Each request is read whole, so that nothing
is reset, and answered once, piece by piece; then the connection is closed.
"""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress

#: From the path that was asked for to the pieces of the answer.
Answer = Callable[[str], Iterable[bytes]]


def page(body: bytes | object, status: str = "200 OK") -> list[bytes]:
    """An answer with this body; what is not bytes goes out as JSON."""
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = f"HTTP/1.1 {status}\r\ncontent-length: {len(raw)}\r\nconnection: close\r\n\r\n"
    return [head.encode(), raw]


def stream(*events: bytes) -> list[bytes]:
    """A streamed answer of these events, each in a piece of its own."""
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
    return [head, *(b"data: " + event + b"\n\n" for event in events)]


def dripping(piece: bytes, pause_s: float = 0.1) -> Iterator[bytes]:
    """The same piece again and again, well within the time limit of a single read."""
    for _ in range(600):
        yield piece
        time.sleep(pause_s)


@contextmanager
def hostile_server(answer: Answer) -> Iterator[str]:
    """Serve; yields the URL, which ends in ``/v1``."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=_accept, args=(listener, answer), daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
        listener.shutdown(socket.SHUT_RDWR)
    thread.join(10)
    assert not thread.is_alive()


def _accept(listener: socket.socket, answer: Answer) -> None:
    with suppress(OSError):
        while True:
            connection, _ = listener.accept()
            threading.Thread(target=_serve, args=(connection, answer), daemon=True).start()


def _serve(connection: socket.socket, answer: Answer) -> None:
    # Whoever asked may leave before all is out.
    with connection, suppress(OSError):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for piece in answer(_asked(connection)):
            connection.sendall(piece)


def _asked(connection: socket.socket) -> str:
    """Read one request whole; its path."""
    with connection.makefile("rb") as reader:
        path = reader.readline().split(b" ")[1].decode()
        length = 0
        while (line := reader.readline().strip()) != b"":
            name, _, value = line.partition(b":")
            length = int(value) if name.lower() == b"content-length" else length
        reader.read(length)
    return path
