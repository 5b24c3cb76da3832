"""Starts the stand-in as a process of its own, and ends it."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class StandIn:
    """A running stand-in: where it listens and its process."""

    origin: str
    process: subprocess.Popen[str]

    def url(self, **options: Any) -> str:
        """The OpenAI base URL under which requests are answered with these options."""
        text = ",".join(f"{key}={value}" for key, value in options.items())
        return f"{self.origin}/{text}/v1" if text else f"{self.origin}/v1"

    def get(self, path: str) -> Any:
        """The JSON at one of the server's own paths, such as ``/requests``."""
        with urllib.request.urlopen(self.origin + path, timeout=30) as reply:  # noqa: S310
            return json.load(reply)


@contextmanager
def standin_server(*arguments: str) -> Iterator[StandIn]:
    """Run a stand-in on a free port of 127.0.0.1 for as long as the context lasts."""
    command = [sys.executable, "-m", "tests.standin.server", *arguments]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        yield StandIn(f"http://127.0.0.1:{port}", process)
    finally:
        process.kill()
        process.wait(timeout=30)
        if process.stdout is not None:
            process.stdout.close()
