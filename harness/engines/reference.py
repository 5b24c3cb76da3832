"""The reference engine: transformers in a child process, one request at a time.

Method: ``reference_child.py`` loads the model and answers requests over its standard streams; its
time stamps are readings of ``time.monotonic``, which all processes of a machine share, so they
need no translation onto the trial's clock. It ends with its input, with this process, or by a
kill: it holds nothing worth a grace. ``KVBENCH_REFERENCE_PYTHON`` names another Python that has
transformers; else the engine's is used.

Not covered: batches and serving. Its figures have an axis of their own and are never set beside a
server's throughput.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any, Literal, Self

from harness.clock import Clock
from harness.engines import reference_child, vllm
from harness.errors import EngineMissing, ServerDied, ServerStartError
from harness.record import CacheSample, PlannedRequest, RequestRecord
from harness.store import read_text_tail
from harness.units import Seconds, Tokens

ENGINE = "reference"
POLL_S: Seconds = 0.25
#: The child only has to notice the end of its input.
GRACE_S: Seconds = 5.0
LOG_TAIL_BYTES = 4096

_NOT_SUPPORTED = ("NotImplementedError", "is not supported", "CUDA is not available")


@dataclass(frozen=True, slots=True)
class ReferenceSpec:
    """What the child is told: the model, the device, and where keys and values come from.

    ``cache``: ``none`` recomputes them for every token, ``growing`` keeps them, ``static`` keeps
    them in a reservation of ``max_cache_len`` tokens. ``threads`` None is the library's choice.
    """

    model: str
    device: Literal["cpu", "cuda"] = "cpu"
    offline: bool = False
    cache: Literal["none", "growing", "static"] = "growing"
    max_cache_len: Tokens | None = None
    dtype: str = "auto"
    attention: str = "sdpa"
    threads: int | None = None
    env: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ReferenceFacts:
    """What the child loaded, in its own words; ``weights_bytes`` counts shared storage once."""

    transformers: str
    torch: str
    dtype: str
    device: str
    threads: int
    attention: str
    weights_bytes: int


@dataclass(frozen=True, slots=True)
class Generation:
    """One request as it went: its record, the cache on the way, the ids that came out."""

    record: RequestRecord
    cache: tuple[CacheSample, ...]
    token_ids: tuple[int, ...]


def python() -> str:
    """The Python that has transformers."""
    return os.environ.get("KVBENCH_REFERENCE_PYTHON") or vllm.engine_python()


def command() -> tuple[str, ...]:
    """The child's command line; what it is told goes through its standard input."""
    # As a file, so that a Python without kvbench can run it.
    return (python(), str(Path(reference_child.__file__).resolve()))


class ReferenceEngine:
    """A running child: ready once :meth:`launch` returns, gone after :meth:`stop`."""

    def __init__(self, spec: ReferenceSpec, log_path: Path) -> None:
        self.spec = spec
        self.log_path = log_path
        self.startup_s: Seconds | None = None
        self.facts: ReferenceFacts | None = None
        self._began = time.monotonic()
        self._events: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._child = self._start()
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    @classmethod
    def launch(
        cls,
        spec: ReferenceSpec,
        log_path: Path,
        *,
        timeout_s: Seconds,
        on_stage: Callable[[str, Seconds], None] = lambda _stage, _elapsed_s: None,
    ) -> Self:
        """Start the child and wait until the model is loaded.

        Raises:
            EngineMissing: its Python has no transformers.
            ServerStartError: it ended, or was not ready in time; carries the end of its log.
        """
        engine = cls(spec, log_path)
        try:
            engine._send(asdict(spec))
            event = engine._await_ready(timeout_s, on_stage)
        except BaseException:
            engine.stop()
            raise
        engine.facts = ReferenceFacts(**event["ready"])
        engine.startup_s = time.monotonic() - engine._began
        return engine

    @property
    def env(self) -> dict[str, str]:
        """What was added to the child's environment."""
        return {**self.spec.env, **(vllm.OFFLINE_ENV if self.spec.offline else {})}

    @property
    def pid(self) -> int:
        """The child's process id."""
        return self._child.pid

    def _start(self) -> subprocess.Popen[str]:
        self.log_path.parent.mkdir(parents=True, exist_ok=True)
        inherited = {k: v for k, v in os.environ.items() if k not in vllm.DROPPED_ENV}
        with self.log_path.open("ab") as log:
            try:
                return subprocess.Popen(
                    command(),
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    text=True,
                    encoding="utf-8",
                    env={**inherited, **self.env},
                    # Ctrl-C is ours to handle: the child is ended when the record is closed.
                    start_new_session=True,
                )
            except OSError as error:
                raise EngineMissing(
                    f"can't start the reference engine: {error.strerror}", where=python()
                ) from error

    def _listen(self) -> None:
        for line in _lines(self._child.stdout):
            self._events.put(json.loads(line))
        self._events.put(None)

    def _send(self, message: dict[str, Any]) -> None:
        stream = self._child.stdin
        with contextlib.suppress(BrokenPipeError):
            # A child that is gone is told by the end of its events.
            if stream is not None:
                stream.write(json.dumps(message) + "\n")
                stream.flush()

    def _await_ready(
        self, timeout_s: Seconds, on_stage: Callable[[str, Seconds], None]
    ) -> dict[str, Any]:
        deadline = self._began + timeout_s
        while time.monotonic() < deadline:
            on_stage("loading the model", time.monotonic() - self._began)
            with contextlib.suppress(queue.Empty):
                event = self._events.get(timeout=POLL_S)
                if event is None:
                    raise self._start_error()
                return event
        raise ServerStartError(
            f"the reference engine was not ready within {timeout_s:g} s",
            where=str(self.log_path),
            next_move="raise timeouts.startup_s",
            evidence=_tail(self.log_path),
        )

    def _start_error(self) -> ServerStartError:
        log = _tail(self.log_path)
        reason = next((line for line in reversed(log.splitlines()) if line.strip()), "no message")
        if "No module named" in reason:
            return EngineMissing(
                f"the reference engine can't start: {reason}",
                where=python(),
                next_move="run `make setup`, or name a Python that has transformers in "
                "KVBENCH_REFERENCE_PYTHON",
                kind="engine",
            )
        kind = "unsupported" if any(word in log for word in _NOT_SUPPORTED) else "unknown"
        return ServerStartError(
            f"the reference engine did not start: {reason}",
            where=str(self.log_path),
            evidence=log,
            kind=kind,
        )

    def death(self) -> str | None:
        """Why the child is gone; None while it lives."""
        code = self._child.poll()
        return None if code is None else f"the reference engine ended with exit code {code}"

    def generate(
        self,
        request: PlannedRequest,
        clock: Clock,
        *,
        timeout_s: Seconds,
        free_since_s: Seconds | None = None,
        on_token: Callable[[int], None] = lambda _tokens: None,
    ) -> Generation:
        """Play one request and return what happened; an error of the model is in its record.

        ``free_since_s`` is when the engine became free for it. ``on_token`` gets the count of
        tokens so far.

        Raises:
            ServerDied: the child is gone, or did not answer in time and was ended.
        """
        sent_s = clock.now()
        self._send(
            {
                "index": request.index,
                "prompt": list(request.prompt_token_ids),
                "output_tokens": request.output_tokens,
            }
        )
        tokens: list[dict[str, Any]] = []
        for event in self._events_until(time.monotonic() + timeout_s):
            if "token" not in event:
                break
            tokens.append(event)
            on_token(len(tokens))
        free_s = sent_s if free_since_s is None else free_since_s
        return _generation(request, clock, free_s, sent_s, tokens, event)

    def _events_until(self, deadline: float) -> Iterator[dict[str, Any]]:
        while True:
            try:
                event = self._events.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                self.stop()
                raise ServerDied(
                    "the reference engine did not answer in time and was ended",
                    next_move="raise timeouts.request_s or shorten the workload",
                ) from None
            if event is None:
                self._child.wait(GRACE_S)
                raise ServerDied(
                    self.death() or "the reference engine closed its output",
                    where=str(self.log_path),
                    evidence=_tail(self.log_path),
                )
            yield event

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


def _lines(stream: IO[str] | None) -> Iterator[str]:
    yield from stream or ()


def _tail(log_path: Path) -> str:
    return "\n".join(read_text_tail(log_path, LOG_TAIL_BYTES).splitlines()[-20:])


def _generation(
    request: PlannedRequest,
    clock: Clock,
    free_s: Seconds,
    sent_s: Seconds,
    tokens: list[dict[str, Any]],
    last: dict[str, Any],
) -> Generation:
    times_s = tuple(event["t"] - clock.zero for event in tokens)
    record = RequestRecord(
        index=request.index,
        phase=request.phase,
        prompt_tokens_planned=len(request.prompt_token_ids),
        output_tokens_planned=request.output_tokens,
        planned_send_s=free_s,
        sent_s=sent_s,
        first_chunk_s=times_s[0] if times_s else None,
        last_chunk_s=times_s[-1] if times_s else None,
        finished_s=clock.now(),
        chunk_times_s=times_s,
        prompt_tokens=last.get("prompt_tokens"),
        output_tokens=None if "error" in last else len(times_s),
        finish_reason=None if "error" in last else "length",
        error=last.get("error"),
    )
    cache = tuple(
        CacheSample(
            t_s=event["t"] - clock.zero,
            request_index=request.index,
            sequence_tokens=event["sequence_tokens"],
            allocated_bytes=event["cache_bytes"],
        )
        for event in tokens
        if "cache_bytes" in event
    )
    return Generation(record, cache, tuple(event["token"] for event in tokens))
