"""A small process that stands between kvbench and the server, so that no server is left behind.

``kill -9`` of vLLM's API server leaves its engine and workers running, and a killed harness
can't clean up at all. The guard can: it starts the server in a process group of its own, adopts
every orphan among the server's descendants (Linux: child subreaper), and ends all of them when

- its standard input is closed: kvbench asked for the stop, or died in whatever way,
- the server's first process ended by itself: its children must not outlive it,
- it gets SIGTERM, SIGINT or SIGHUP.

Should the guard itself be killed, the server's first process gets SIGTERM from the kernel
(parent-death signal), upon which vLLM shuts down its children.

Run as ``python guard.py GRACE_SECONDS COMMAND…``. It answers on standard output with lines
``pid N`` and, at the end, ``exit CODE``; the server's output goes to the guard's standard error, a
log file. It imports nothing of kvbench and must stay quick to start.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from types import FrameType

import psutil

KILL_WAIT_S = 15.0
POLL_S = 0.1
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def _prctl(option: int, value: int) -> None:
    """Linux only; elsewhere the guard works without this second net."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def _end_with_parent() -> None:
    _prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def start(command: list[str]) -> subprocess.Popen[bytes]:
    """Start the server as the leader of a new session and process group."""
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr,
        stderr=sys.stderr,
        start_new_session=True,
        preexec_fn=_end_with_parent,
    )


def living_descendants() -> list[psutil.Process]:
    """Every process below the guard that is not a zombie."""
    alive = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if process.status() != psutil.STATUS_ZOMBIE:
                alive.append(process)
    return alive


def reap() -> None:
    """Collect adopted children that ended, so that they don't stay as zombies."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def end_all(server: subprocess.Popen[bytes], grace_s: float) -> None:
    """SIGTERM to the server's group, a time of grace, then SIGKILL to whatever still lives."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(server.pid, signal.SIGTERM)
    _wait_until_gone(server, grace_s)
    deadline = time.monotonic() + KILL_WAIT_S
    while (alive := living_descendants()) and time.monotonic() < deadline:
        for process in alive:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        _wait_until_gone(server, 1.0)


def _wait_until_gone(server: subprocess.Popen[bytes], limit_s: float) -> None:
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        # Popen.poll collects the server; only then may the rest be reaped by waitpid(-1).
        if server.poll() is not None:
            reap()
        if not living_descendants():
            return
        time.sleep(POLL_S)


def watch(server: subprocess.Popen[bytes], stop: list[int]) -> int | None:
    """Wait until a stop is asked for (None) or the server ended (its exit code)."""
    while not stop:
        if (code := server.poll()) is not None:
            return code
        with contextlib.suppress(InterruptedError):
            readable, _, _ = select.select([sys.stdin], [], [], POLL_S)
            if readable and not os.read(sys.stdin.fileno(), 4096):
                return None
    return None


def _say(text: str) -> None:
    # The harness may be gone already; then nobody listens, and that is fine.
    with contextlib.suppress(OSError):
        os.write(sys.stdout.fileno(), f"{text}\n".encode())


def main(grace_s: float, command: list[str]) -> int:
    """Guard one server from its start to its end; ``grace_s`` lies between SIGTERM and SIGKILL."""
    stop: list[int] = []

    def on_signal(number: int, _frame: FrameType | None) -> None:
        stop.append(number)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, on_signal)
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    try:
        server = start(command)
    except OSError as error:
        sys.stderr.write(f"kvbench: can't start {command[0]}: {error.strerror}\n")
        _say("exit 127")
        return 127
    _say(f"pid {server.pid}")
    code = watch(server, stop)
    # A server that ended by itself gets no grace for its children: nobody is left to tell them.
    end_all(server, grace_s if code is None else min(grace_s, 2.0))
    _say(f"exit {server.returncode if server.returncode is not None else -signal.SIGKILL}")
    return 0


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1]), sys.argv[2:]))
