"""A hub that answers, one that says no, and none: what a model's configuration costs to ask for.

The hub is a real server in a thread, and ``huggingface_hub`` the real client in a process of its
own, since it reads its address once, at import.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

CONFIG = b'{"model_type": "llama"}'
ASK = """
import json, sys
from harness.engines import hub
from harness.errors import NotFound
for _ in range(2):
    try:
        print(json.dumps(hub.fetch_config("some/model")))
    except NotFound as error:
        print(json.dumps(str(error)))
"""


class Hub(BaseHTTPRequestHandler):
    """Knows the configuration of ``some/model``, unless the address begins with ``/none``."""

    def do_HEAD(self) -> None:
        if self.path.startswith("/none"):
            self.send_response(404)
            self.send_header("X-Error-Code", "RepoNotFound")
            self.end_headers()
            return
        self.send_response(200)
        self.send_header("ETag", '"abc"')
        self.send_header("X-Repo-Commit", "0" * 40)
        self.send_header("Content-Length", str(len(CONFIG)))
        self.end_headers()

    def do_GET(self) -> None:
        self.do_HEAD()
        self.wfile.write(CONFIG)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Say nothing."""


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Hub) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def asked(address: str, home: Path) -> list[object]:
    env = {**os.environ, "HF_ENDPOINT": address, "HF_HOME": str(home)}
    env.pop("HF_HUB_OFFLINE", None)
    done = subprocess.run(
        [sys.executable, "-c", ASK], env=env, capture_output=True, text=True, check=True
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_a_configuration_comes_from_the_hub_and_then_from_its_cache(
    address: str, tmp_path: Path
) -> None:
    assert asked(address, tmp_path) == [{"model_type": "llama"}] * 2
    assert asked("http://127.0.0.1:9", tmp_path) == [{"model_type": "llama"}] * 2


def test_a_model_that_the_hub_does_not_know_is_told(address: str, tmp_path: Path) -> None:
    (first, _) = asked(f"{address}/none", tmp_path)
    assert "'some/model' is not to be had (RepositoryNotFoundError)" in str(first)


def test_without_a_network_nobody_waits_for_retries(tmp_path: Path) -> None:
    began = time.monotonic()
    (first, second) = asked("http://127.0.0.1:9", tmp_path)
    assert "is not to be had" in str(first)
    assert first == second
    # Its own retries would take twice 1 + 2 + 4 + 8 + 8 = 23 s.
    assert time.monotonic() - began < 23
