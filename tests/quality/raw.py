"""A server that sends bytes as they are given, for replies that no well-meaning library writes."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

Sender = Callable[[socket.socket], None]


def whole(body: bytes, status: str = "200 OK", kind: str = "application/json") -> Sender:
    """Sends one reply with a body of whatever bytes."""
    head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n"

    def send(connection: socket.socket) -> None:
        connection.sendall(head.encode() + b"Connection: close\r\n\r\n" + body)

    return send


@contextmanager
def answering(send: Sender) -> Iterator[str]:
    """Serve ``send`` to every connection, once its request is there; gives the base URL."""
    listener = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=_accept, args=(listener, send), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
    finally:
        # Only this wakes a thread that waits in accept.
        with suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        listener.close()


def _accept(listener: socket.socket, send: Sender) -> None:
    with suppress(OSError):
        while True:
            connection, _ = listener.accept()
            threading.Thread(target=_serve, args=(connection, send), daemon=True).start()


def _serve(connection: socket.socket, send: Sender) -> None:
    with connection, suppress(OSError):
        request = b""
        while b"\r\n\r\n" not in request:
            request += connection.recv(65536)
        head, _, body = request.partition(b"\r\n\r\n")
        length = next(
            int(line.partition(b":")[2])
            for line in head.split(b"\r\n")
            if line.lower().startswith(b"content-length")
        )
        while len(body) < length:
            body += connection.recv(65536)
        send(connection)
