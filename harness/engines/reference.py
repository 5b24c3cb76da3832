"""The reference engine: transformers in a child process, one request at a time.

Method: ``reference_child.py`` loads the model and answers requests over its standard streams
(``child``). ``KVBENCH_REFERENCE_PYTHON`` names another Python that has transformers; else the
engine's is used.

Not covered: batches and serving. Its figures have an axis of their own and are never set beside a
server's throughput.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, Self

from harness.clock import Clock
from harness.engines import reference_child, vllm
from harness.engines.child import JsonChild, Stage
from harness.record import CacheSample, PlannedRequest, RequestRecord
from harness.units import Seconds, Tokens

ENGINE = "reference"


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


class ReferenceEngine(JsonChild):
    """A running child: ready once :meth:`launch` returns, gone after :meth:`stop`."""

    TITLE = "the reference engine"
    NO_MODULE = (
        "run `make setup`, or name a Python that has transformers in KVBENCH_REFERENCE_PYTHON"
    )

    def __init__(self, spec: ReferenceSpec, log_path: Path) -> None:
        self.spec = spec
        self.facts: ReferenceFacts | None = None
        super().__init__(command(), self.env, log_path)

    @classmethod
    def launch(
        cls,
        spec: ReferenceSpec,
        log_path: Path,
        *,
        timeout_s: Seconds,
        on_stage: Stage = lambda _stage, _elapsed_s: None,
    ) -> Self:
        """Start the child and wait until the model is loaded.

        Raises:
            EngineMissing: its Python has no transformers.
            ServerStartError: it ended, or was not ready in time; carries the end of its log.
        """
        engine = cls(spec, log_path)
        engine.facts = ReferenceFacts(**engine._settled(asdict(spec), timeout_s, on_stage))
        return engine

    @property
    def env(self) -> dict[str, str]:
        """What was added to the child's environment."""
        return {**self.spec.env, **(vllm.OFFLINE_ENV if self.spec.offline else {})}

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
