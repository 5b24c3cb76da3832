"""Whether a process still runs: it may end between two looks, which psutil answers by raising."""

from __future__ import annotations

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
