"""A URL behind which something else answers: a sentence, never a trace, and never the key."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest

from harness.engines import attached
from harness.errors import NotFound

KEY = "the-key-of-another-server"


@contextmanager
def answering(answer: Callable[[bytes], bytes], seen: list[bytes] | None = None) -> Iterator[str]:
    """A server that answers each connection once with the bytes it is given."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                # Whoever asked may leave before the answer is out.
                with connection, suppress(OSError):
                    asked = connection.recv(65536)
                    if seen is not None:
                        seen.append(asked)
                    connection.sendall(answer(asked))

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
        listener.shutdown(socket.SHUT_RDWR)
    thread.join(5)
    assert not thread.is_alive()


def page(body: bytes) -> bytes:
    head = b"HTTP/1.1 200 OK\r\ncontent-length: " + str(len(body)).encode()
    return head + b"\r\nconnection: close\r\n\r\n" + body


@pytest.mark.parametrize(
    "answer",
    [
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b"",
        page(b"<html>log in</html>"),
        page(b"[" * 100_000),
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 500 Oops\r\ncontent-length: 0\r\n\r\n",
    ],
)
def test_what_is_no_such_server_is_said_to_be_none(answer: bytes) -> None:
    with answering(lambda _: answer) as url, pytest.raises(NotFound, match="no OpenAI-compatible"):
        attached.facts(url, None)


def test_a_model_name_that_could_not_be_stored_is_not_taken() -> None:
    body = page(b'{"data": [{"id": "a\\ud800"}, {"id": "b\\u001b[2J"}]}')
    with answering(lambda _: body) as url, pytest.raises(NotFound, match="lists no model"):
        attached.facts(url, None)


def test_the_key_is_not_carried_on_to_where_a_redirect_points() -> None:
    elsewhere: list[bytes] = []
    with answering(lambda _: page(b"{}"), elsewhere) as other:
        moved = f"HTTP/1.1 302 Found\r\nlocation: {other}\r\ncontent-length: 0\r\n\r\n".encode()
        with answering(lambda _: moved) as url, pytest.raises(NotFound):
            attached.facts(url, KEY)
    assert elsewhere == []
