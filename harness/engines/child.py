"""A helper process that answers JSON lines: started, awaited, asked, ended.

Method: the first line that the child reads is what it is told, the first that it writes says what
it loaded; then requests and events, a line each. Its time stamps are readings of
``time.monotonic``, which all processes of a machine share, so they need no translation onto a
trial's clock. It ends with its input, with this process, or by a kill: it holds nothing worth a
grace. A line that is no JSON object (a library that prints) can't be told from a lost answer, so
it counts as the child's death, with the line as evidence.

Not covered: what is asked (``reference``, ``kvpress``).
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

from harness.engines import vllm
from harness.errors import EngineMissing, ServerDied, ServerStartError
from harness.store import read_text_tail
from harness.units import Seconds

POLL_S: Seconds = 0.25
#: The child only has to notice the end of its input.
GRACE_S: Seconds = 5.0
LOG_TAIL_BYTES = 4096
_LONGEST_STRAY = 200

_NOT_SUPPORTED = ("NotImplementedError", "is not supported", "CUDA is not available")

Stage = Callable[[str, Seconds], None]


class JsonChild:
    """A running child; ready once :meth:`_await_ready` has returned, gone after :meth:`stop`.

    ``TITLE`` is what it is called in messages, ``NO_MODULE`` the next move where its Python lacks
    a package.
    """

    TITLE: ClassVar[str]
    NO_MODULE: ClassVar[str]

    def __init__(self, command: tuple[str, ...], env: Mapping[str, str], log_path: Path) -> None:
        self.log_path = log_path
        self.startup_s: Seconds | None = None
        self._command = command
        self._began = time.monotonic()
        self._events: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._stray: str | None = None
        self._child = self._start(env)
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    @property
    def pid(self) -> int:
        """The child's process id."""
        return self._child.pid

    def _start(self, env: Mapping[str, str]) -> subprocess.Popen[str]:
        self.log_path.parent.mkdir(parents=True, exist_ok=True)
        inherited = {k: v for k, v in os.environ.items() if k not in vllm.DROPPED_ENV}
        with self.log_path.open("ab") as log:
            try:
                return subprocess.Popen(
                    self._command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    text=True,
                    encoding="utf-8",
                    errors="replace",
                    env={**inherited, **env},
                    # Ctrl-C is ours to handle: the child is ended when the record is closed.
                    start_new_session=True,
                )
            except OSError as error:
                raise EngineMissing(
                    f"can't start {self.TITLE}: {error.strerror}",
                    where=self._command[0],
                    next_move=self.NO_MODULE,
                    kind="engine",
                ) from error

    def _listen(self) -> None:
        try:
            for line in self._child.stdout or ():
                event = _event(line)
                if event is None:
                    self._stray = line.strip()[:_LONGEST_STRAY]
                    return
                self._events.put(event)
        finally:
            # However the listening ends: whoever waits must not wait for the time-out.
            self._events.put(None)

    def _send(self, message: dict[str, Any]) -> None:
        stream = self._child.stdin
        with contextlib.suppress(BrokenPipeError):
            # A child that is gone is told by the end of its events.
            if stream is not None:
                stream.write(json.dumps(message) + "\n")
                stream.flush()

    def _settled(
        self, settings: dict[str, Any], timeout_s: Seconds, on_stage: Stage
    ) -> dict[str, Any]:
        """Tell the child its settings and return what it says once ready; a failure ends it."""
        try:
            self._send(settings)
            told: dict[str, Any] = self._await_ready(timeout_s, on_stage)["ready"]
        except BaseException:
            self.stop()
            raise
        return told

    def _await_ready(self, timeout_s: Seconds, on_stage: Stage) -> dict[str, Any]:
        deadline = self._began + timeout_s
        while time.monotonic() < deadline:
            on_stage("loading the model", time.monotonic() - self._began)
            with contextlib.suppress(queue.Empty):
                event = self._events.get(timeout=POLL_S)
                if event is None:
                    raise self._start_error()
                self.startup_s = time.monotonic() - self._began
                return event
        raise ServerStartError(
            f"{self.TITLE} was not ready within {timeout_s:g} s",
            where=str(self.log_path),
            next_move="raise timeouts.startup_s",
            evidence=_tail(self.log_path),
        )

    def _start_error(self) -> ServerStartError:
        log = _tail(self.log_path)
        if (told := self._stray_told()) is not None:
            return ServerStartError(told, where=str(self.log_path), evidence=log)
        reason = next((line for line in reversed(log.splitlines()) if line.strip()), "no message")
        if "No module named" in reason:
            return EngineMissing(
                f"{self.TITLE} can't start: {reason}",
                where=self._command[0],
                next_move=self.NO_MODULE,
                kind="engine",
            )
        kind = "unsupported" if any(word in log for word in _NOT_SUPPORTED) else "unknown"
        return ServerStartError(
            f"{self.TITLE} did not start: {reason}",
            where=str(self.log_path),
            evidence=log,
            kind=kind,
        )

    def death(self) -> str | None:
        """Why nothing more can be asked of the child; None while something can."""
        code = self._child.poll()
        ended = None if code is None else f"{self.TITLE} ended with exit code {code}"
        return self._stray_told() or ended

    def _stray_told(self) -> str | None:
        if self._stray is None:
            return None
        return f"{self.TITLE} wrote a line that is no answer and was ended: {self._stray!r}"

    def _events_until(self, deadline: float) -> Iterator[dict[str, Any]]:
        while True:
            try:
                event = self._events.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                self.stop()
                raise self._died(
                    f"{self.TITLE} did not answer in time and was ended",
                    "raise timeouts.request_s or shorten the workload",
                ) from None
            if event is None:
                # It may live on, having closed its output or said what nobody understands.
                self.stop()
                raise self._died(self.death() or f"{self.TITLE} closed its output")
            yield event

    def _died(self, what: str, next_move: str = "its log tells more") -> ServerDied:
        return ServerDied(
            what, where=str(self.log_path), next_move=next_move, evidence=_tail(self.log_path)
        )

    def stop(self) -> Seconds:
        """End the child; returns how long that took. Safe to call again."""
        began = time.monotonic()
        if self._child.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self._child.stdin.close()
        try:
            self._child.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()
        self._listener.join()
        if self._child.stdout is not None:
            self._child.stdout.close()
        return time.monotonic() - began


def _event(line: str) -> dict[str, Any] | None:
    try:
        event = json.loads(line)
    except ValueError:
        return None
    return event if isinstance(event, dict) else None


def _tail(log_path: Path) -> str:
    return "\n".join(read_text_tail(log_path, LOG_TAIL_BYTES).splitlines()[-20:])
