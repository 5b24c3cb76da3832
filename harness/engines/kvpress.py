"""NVIDIA's kvpress on transformers, in the environment that ``make kvpress`` builds.

Method: ``kvpress_env/child.py`` loads the model once and scores the tails of given prompts behind
prefills that a policy has compressed (``child`` tells how the two talk). Its transformers and the
engine's exclude each other, so it has a Python of its own; where that is not there, the reason
says which command makes it. ``KVBENCH_KVPRESS_PYTHON`` names another one.

Not covered: speed. What comes back is bytes and probabilities.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, Self

from harness.engines import vllm
from harness.engines.child import JsonChild, Stage
from harness.engines.kvpress_env import child
from harness.units import Bytes, Seconds, Tokens

ENGINE = "kvpress"
VARIABLE = "KVBENCH_KVPRESS_PYTHON"
_BUILT = Path(__file__).resolve().parents[2] / ".venv-kvpress" / "bin" / "python"
#: Makes that environment and stops; without the argument all policies are measured as well.
_BUILD = "make kvpress ARGS=--setup-only"

#: The name of a policy that compresses nothing: transformers alone.
NO_PRESS = "none"


@dataclass(frozen=True, slots=True)
class KvpressSpec:
    """What the child is told: the model's folder or name, and the device."""

    model: str
    device: Literal["cpu", "cuda"] = "cpu"


@dataclass(frozen=True, slots=True)
class KvpressFacts:
    """What the child loaded, in its own words."""

    kvpress: str
    transformers: str
    torch: str
    dtype: str
    device: str


@dataclass(frozen=True, slots=True)
class ScoreRequest:
    """One prompt under one policy: its tokens, how many are prefilled, which places are scored.

    Every position lies behind the prefill.
    """

    index: int
    press: str
    compression_ratio: float
    tokens: tuple[int, ...]
    prefill: Tokens
    positions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ScoreReply:
    """What came back: tokens and bytes left of the prefill, probabilities (as ``QualityScore``)."""

    index: int
    kept_tokens: Tokens
    cache_bytes: Bytes
    logprobs: tuple[float, ...]
    ranks: tuple[int, ...]
    top_ids: tuple[tuple[int, ...], ...]
    top_logprobs: tuple[tuple[float, ...], ...]


def python() -> str:
    """The Python that has kvpress, whether or not it is there."""
    return os.environ.get(VARIABLE) or str(_BUILT)


def missing() -> str | None:
    """Why policies of kvpress can't be measured here; None if they can."""
    if Path(python()).is_file():
        return None
    return (
        "kvpress needs an environment of its own, and there is none: "
        f"`{_BUILD}` builds it (1.5 GB), then the same `kvbench bench` with --resume measures "
        "what is missing"
    )


def command() -> tuple[str, ...]:
    """The child's command line; what it is told goes through its standard input."""
    return (python(), str(Path(child.__file__).resolve()), "--serve")


class KvpressEngine(JsonChild):
    """A running child: ready once :meth:`launch` returns, gone after :meth:`stop`."""

    TITLE = "kvpress"
    NO_MODULE = f"run `{_BUILD}`, or name a Python that has kvpress in {VARIABLE}"

    def __init__(self, spec: KvpressSpec, log_path: Path) -> None:
        self.spec = spec
        self.facts: KvpressFacts | None = None
        super().__init__(command(), self.env, log_path)

    @classmethod
    def launch(
        cls,
        spec: KvpressSpec,
        log_path: Path,
        *,
        timeout_s: Seconds,
        on_stage: Stage = lambda _stage, _elapsed_s: None,
    ) -> Self:
        """Start the child and wait until the model is loaded.

        Raises:
            EngineMissing: its Python can't be started, or lacks kvpress.
            ServerStartError: it ended, or was not ready in time; carries the end of its log.
        """
        engine = cls(spec, log_path)
        engine.facts = KvpressFacts(**engine._settled(asdict(spec), timeout_s, on_stage))
        return engine

    @property
    def env(self) -> dict[str, str]:
        """What is added to the child's environment: the model is already on this machine."""
        return dict(vllm.OFFLINE_ENV)

    def score(self, asked: ScoreRequest, *, timeout_s: Seconds) -> ScoreReply | str:
        """Score one prompt; a text is the child's reason why it could not.

        Raises:
            ServerDied: the child is gone, or did not answer in time and was ended.
        """
        self._send(asdict(asked))
        event = next(self._events_until(time.monotonic() + timeout_s))
        return str(event["error"]) if "error" in event else _score_reply(event)


def _score_reply(event: dict[str, Any]) -> ScoreReply:
    def rows(values: Sequence[Sequence[Any]]) -> tuple[tuple[Any, ...], ...]:
        return tuple(tuple(row) for row in values)

    return ScoreReply(
        index=event["done"],
        kept_tokens=event["kept_tokens"],
        cache_bytes=event["cache_bytes"],
        logprobs=tuple(event["logprobs"]),
        ranks=tuple(event["ranks"]),
        top_ids=rows(event["top_ids"]),
        top_logprobs=rows(event["top_logprobs"]),
    )
