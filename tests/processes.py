"""Whether a process still runs: it may end between two looks, which psutil answers by raising."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

import psutil


def running(pid: int) -> bool:
    """Whether it exists and is no zombie that waits for its parent to ask."""
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def command_line(process: psutil.Process) -> str:
    """Its words with a space between, or nothing where it is gone."""
    try:
        return " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return ""


def command_lines() -> list[str]:
    """Those of all processes that this one has started, directly or not."""
    return [command_line(child) for child in psutil.Process().children(recursive=True)]


def gone(pid: int, within_s: float = 15.0) -> bool:
    """Wait until a process has ended; False if it still runs when the time is up."""
    deadline = time.monotonic() + within_s
    while running(pid):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def holders(folder: Path) -> list[int]:
    """All processes that have a file below a folder open, as a server and its workers their log."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if any(Path(file.path).is_relative_to(folder) for file in process.open_files()):
                found.append(process.pid)
    return found
