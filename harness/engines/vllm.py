"""Launch, await and stop a vLLM server; nothing here imports vLLM.

The server is a command, ``python -m vllm.entrypoints.openai.api_server``, started through
``guard.py`` so that it can't outlive us, bound to 127.0.0.1 on a free port. Its whole log goes
to a file. ``KVBENCH_ENGINE_PYTHON`` names another Python that has vLLM. Not covered: servers on
other machines (use ``attach``).
"""

from __future__ import annotations

import contextlib
import http.client
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from harness.engines import guard, server_log
from harness.engines.eviction.evidence import require_in_force
from harness.errors import EngineMissing, ServerStartError
from harness.scenario import server_command_flags
from harness.scenario.load import JUDGE_KEY_VARIABLE
from harness.scenario.schema import holds_secret
from harness.specs.eviction import VARIABLE as EVICTION
from harness.store import read_text_tail, set_log_aside
from harness.telemetry.process import listens, worker_bytes
from harness.units import Bytes, Seconds

#: The package that the scenarios are written and tested for.
PINNED_VERSION = "0.32.0"
SERVED_NAME = "kvbench"
MODULE = "vllm.entrypoints.openai.api_server"
HOST = "127.0.0.1"
POLL_S: Seconds = 0.25
QUICK_POLL_S: Seconds = 0.05
#: From SIGTERM to SIGKILL; vLLM needs 1 to 6 s to end its engine and workers.
GRACE_S: Seconds = 30.0
LOG_TAIL_BYTES = 256 * 1024

#: Set for every server we launch, and recorded.
SERVER_ENV = {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "PYTHONUNBUFFERED": "1"}
OFFLINE_ENV = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
#: Would change what is measured behind the scenario's back, lock our own client out, or hand a
#: key of other servers to this one.
DROPPED_ENV = (
    "VLLM_API_KEY",
    "VLLM_CPU_KVCACHE_SPACE",
    "OPENAI_API_KEY",
    JUDGE_KEY_VARIABLE,
    EVICTION,
)
#: Inherited settings of these families bear on the result, so they are recorded.
_RECORDED_ENV = re.compile(r"^(VLLM_|CUDA_VISIBLE|NVIDIA_VISIBLE|OMP_|NCCL_|TORCH|PYTORCH_)")
#: Of set-up, not of the server.
_NOT_RECORDED = ("TORCH_INDEX",)


@dataclass(frozen=True, slots=True)
class ServerSpec:
    """What to launch: model, vLLM flags in vLLM's spelling, and the environment we add."""

    model: str
    flags: Mapping[str, Any] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    offline: bool = False


def engine_python() -> str:
    """The Python that has vLLM: ours, unless ``KVBENCH_ENGINE_PYTHON`` names another."""
    return os.environ.get("KVBENCH_ENGINE_PYTHON") or sys.executable


def server_command(spec: ServerSpec, port: int) -> tuple[str, ...]:
    """The full command line of the server, as it is recorded and printed."""
    return (
        engine_python(),
        "-m",
        MODULE,
        "--model",
        spec.model,
        "--served-model-name",
        SERVED_NAME,
        "--host",
        HOST,
        "--port",
        str(port),
        "--disable-uvicorn-access-log",
        *server_command_flags(spec.flags),
    )


def recorded_env(spec: ServerSpec) -> dict[str, str]:
    """The settings of the server's environment that bear on results; never a secret."""
    inherited = {name: value for name, value in os.environ.items() if _is_recorded(name, value)}
    return {**inherited, **_added_env(spec)}


def _is_recorded(name: str, value: str) -> bool:
    if not _RECORDED_ENV.match(name) or name in DROPPED_ENV or name in _NOT_RECORDED:
        return False
    return not holds_secret(name, value)


def _added_env(spec: ServerSpec) -> dict[str, str]:
    return {**SERVER_ENV, **(OFFLINE_ENV if spec.offline else {}), **spec.env}


def _full_env(spec: ServerSpec) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name not in DROPPED_ENV}
    return {**kept, **_added_env(spec)}


def free_port() -> int:
    """A TCP port of 127.0.0.1 that was free a moment ago."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


class Server:
    """A launched server: healthy once :meth:`launch` returns, gone after :meth:`stop`."""

    def __init__(self, spec: ServerSpec, log_path: Path, *, grace_s: Seconds = GRACE_S) -> None:
        self._grace_s = grace_s
        self.spec = spec
        self.log_path = log_path
        self.port = free_port()
        self.command = server_command(spec, self.port)
        self.startup_s: Seconds | None = None
        #: Memory of the workers when they began to load the weights: interpreters and
        #: libraries, which the memory ledger must not charge to the model.
        self.worker_before_weights_bytes: Bytes | None = None
        self.pid: int | None = None
        self.exit_code: int | None = None
        self._began = time.monotonic()
        self._guard = self._start_guard()
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    @classmethod
    def launch(
        cls,
        spec: ServerSpec,
        log_path: Path,
        *,
        timeout_s: Seconds,
        on_stage: Callable[[str, Seconds], None] = lambda _stage, _elapsed_s: None,
        grace_s: Seconds = GRACE_S,
    ) -> Self:
        """Start a server and wait until it is healthy; a taken port is tried once more.

        ``log_path`` is the log of the start that this returns, or fails with; that of an earlier
        try lies beside it. ``on_stage`` is called several times a second with what the server is
        doing.

        Raises:
            EngineMissing: no vLLM in the engine's Python.
            ServerStartError: it ended, did not become healthy in time, or does not evict though it
                was asked to; the message carries the reason found in its log, ``kind`` its sort.
        """
        for attempt in (1, 2):
            server = cls(spec, log_path, grace_s=grace_s)
            try:
                server._await_health(timeout_s, on_stage)
                require_in_force(spec.env, server.log())
                return server
            except ServerStartError as error:
                server.stop()
                if error.kind != "port" or attempt == 2:
                    raise
                set_log_aside(log_path)
            except BaseException:
                server.stop()
                raise
        raise AssertionError("unreachable")

    def _start_guard(self) -> subprocess.Popen[bytes]:
        self.log_path.parent.mkdir(parents=True, exist_ok=True)
        with self.log_path.open("ab") as log:
            return subprocess.Popen(
                [sys.executable, guard.__file__, str(self._grace_s), *self.command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=_full_env(self.spec),
                # Ctrl-C in the terminal is ours to handle; the server is stopped in order.
                start_new_session=True,
            )

    def _listen(self) -> None:
        for line in self._guard.stdout or ():
            word, _, number = line.decode().partition(" ")
            if word == "pid":
                self.pid = int(number)
            elif word == "exit":
                self.exit_code = int(number)

    @property
    def root_url(self) -> str:
        """``http://127.0.0.1:port``, where ``/health`` and ``/metrics`` are."""
        return f"http://{HOST}:{self.port}"

    @property
    def api_url(self) -> str:
        """``http://127.0.0.1:port/v1``, where the OpenAI-compatible endpoints are."""
        return f"{self.root_url}/v1"

    def alive(self) -> bool:
        """Whether the server's first process is still running."""
        return self.exit_code is None and self._guard.poll() is None

    def log(self) -> str:
        """The log so far: all of it, but for what lies before the last 256 KiB."""
        return read_text_tail(self.log_path, LOG_TAIL_BYTES)

    def death(self) -> str | None:
        """Why the server is no longer there, with the end of its log; None while it lives."""
        if self.alive():
            return None
        # The guard may be gone before the listener has read its last word, the exit code.
        self._listener.join(timeout=5.0)
        failure = server_log.explain_failure(self.log(), self.exit_code)
        return f"{failure.reason}\n{failure.evidence}"

    def _await_health(self, timeout_s: Seconds, on_stage: Callable[[str, Seconds], None]) -> None:
        while True:
            elapsed_s = time.monotonic() - self._began
            if not self.alive():
                self._listener.join(timeout=5.0)
                raise self._start_error()
            if self._healthy():
                self.startup_s = elapsed_s
                return
            if elapsed_s > timeout_s:
                self.stop()
                raise ServerStartError(
                    f"the server was not healthy after {timeout_s:.0f} s "
                    f"(last seen: {server_log.stage(self.log())})",
                    where=str(self.log_path),
                    next_move="raise timeouts.startup_s if it only needs longer",
                    evidence="\n".join(self.log().splitlines()[-10:]),
                )
            stage = server_log.stage(self.log())
            if stage == server_log.LOADING and self.worker_before_weights_bytes is None:
                self.worker_before_weights_bytes = worker_bytes(self.pid) if self.pid else None
            on_stage(stage, elapsed_s)
            # The reading above must be taken before much is loaded: a gigabyte takes a second.
            time.sleep(QUICK_POLL_S if stage == server_log.STARTING else POLL_S)

    def _healthy(self) -> bool:
        connection = http.client.HTTPConnection(HOST, self.port, timeout=2.0)
        try:
            connection.request("GET", "/health")
            answered = connection.getresponse().status == http.client.OK
            return answered and self._is_ours()
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    def _is_ours(self) -> bool:
        """Whether it was our server that answered: its port was free when chosen, not held."""
        return self.pid is not None and listens(self.pid, self.port) is not False

    def _start_error(self) -> ServerStartError:
        failure = server_log.explain_failure(self.log(), self.exit_code)
        self.stop()
        if failure.kind == "engine":
            return EngineMissing(
                failure.reason,
                where=engine_python(),
                next_move=failure.next_move,
                evidence=failure.evidence,
                kind=failure.kind,
            )
        return ServerStartError(
            failure.reason,
            where=str(self.log_path),
            next_move=failure.next_move,
            evidence=failure.evidence,
            kind=failure.kind,
        )

    def stop(self) -> Seconds:
        """End the server and everything it started; returns how long that took.

        The guard ends only when no process is left. Safe to call twice.
        """
        began = time.monotonic()
        if self._guard.stdin is not None:
            with contextlib.suppress(OSError):
                self._guard.stdin.close()
        try:
            self._guard.wait(self._grace_s + guard.KILL_WAIT_S + 10.0)
        except subprocess.TimeoutExpired:
            self._guard.kill()
            self._guard.wait()
        self._listener.join(timeout=5.0)
        if self._guard.stdout is not None:
            self._guard.stdout.close()
        return time.monotonic() - began

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()
