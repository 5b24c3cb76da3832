"""Every error that kvbench raises on purpose, and what a person is told about it.

The tree::

    KvbenchError                    exit 1
    ├── InputError                  exit 2   the user can mend it in a file or on the command line
    │   ├── ScenarioError                    a scenario file or a ``--set`` override
    │   ├── ModelConfigError                 a config.json that can't be read as a model
    │   │   └── UnsupportedModel             readable, but its KV layout is not modelled
    │   └── NotFound                         a scenario, run or model that isn't there
    ├── EngineError                 exit 1
    │   ├── ServerStartError                 the server ended before it was healthy
    │   │   └── EngineMissing                its Python lacks the engine, or can't be run
    │   └── ServerDied                       the server ended in the middle of a load
    ├── ModelFetchError             exit 1   the embedded model could not be prepared
    ├── StoreError                  exit 1   results that can't be written or read back
    └── NothingMeasured             exit 1   every variant was skipped or failed

A message says *what* is wrong, *where* (file, key, line), what is *legal*, and the *next move*.
Anything that is not a :class:`KvbenchError` is a bug and may show its stack trace.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches


class KvbenchError(Exception):
    """A failure that a person can understand and act upon.

    ``what`` is one sentence; ``where`` names the file, key or line; ``legal`` lists what would
    have been accepted; ``next_move`` says what to do; ``evidence`` quotes the proof (a log tail).
    """

    exit_code = 1

    def __init__(
        self,
        what: str,
        *,
        where: str | None = None,
        legal: Iterable[str] | None = None,
        next_move: str | None = None,
        evidence: str | None = None,
    ) -> None:
        super().__init__(what)
        self.what = what
        self.where = where
        self.legal = tuple(legal) if legal is not None else None
        self.next_move = next_move
        self.evidence = evidence

    @property
    def told(self) -> str:
        """What and its evidence, as the reason of a trial is stored."""
        return f"{self.what}: {self.evidence}" if self.evidence else self.what

    def __str__(self) -> str:
        lines = [f"{self.where}: {self.what}" if self.where else self.what]
        if self.legal is not None:
            lines.append(f"  legal: {', '.join(self.legal) or '(nothing)'}")
        if self.evidence:
            lines.append("  evidence:")
            lines.extend(f"    {line}" for line in self.evidence.splitlines())
        if self.next_move:
            lines.append(f"  next: {self.next_move}")
        return "\n".join(lines)


class InputError(KvbenchError):
    """Something the user wrote is wrong; nothing was started."""

    exit_code = 2


class ScenarioError(InputError):
    """A scenario file, or an override of it, says something that can't be run."""


class ModelConfigError(InputError):
    """A model configuration can't be read."""


class UnsupportedModel(ModelConfigError):
    """The KV layout of this model is not modelled; names the fields that could not be placed."""


class NotFound(InputError):
    """A scenario, run, or model that was named does not exist."""


class EngineError(KvbenchError):
    """The inference engine did not do what was asked."""


class ServerStartError(EngineError):
    """The server ended, or stayed unhealthy, before it served anything.

    ``kind`` sorts the reason: ``unsupported`` (this engine or device can't do it), ``memory``,
    ``flag``, ``model``, ``gated``, ``port``, ``killed``, ``engine`` or ``unknown``.
    """

    def __init__(
        self,
        what: str,
        *,
        where: str | None = None,
        next_move: str | None = None,
        evidence: str | None = None,
        kind: str = "unknown",
    ) -> None:
        super().__init__(what, where=where, next_move=next_move, evidence=evidence)
        self.kind = kind


class EngineMissing(ServerStartError):
    """The engine's Python lacks it (vLLM, transformers, kvpress), or has another device's build.

    A Python that is not there or can't be run counts, too.
    """


class ServerDied(EngineError):
    """The server ended while requests were being played against it."""


class ModelFetchError(KvbenchError):
    """The embedded model could not be fetched, verified or converted."""


class StoreError(KvbenchError):
    """Results could not be written, or what was read back is not what was sealed."""


class NothingMeasured(KvbenchError):
    """A bench ended without one measured trial."""


def did_you_mean(word: str, choices: Iterable[str]) -> str | None:
    """Return a suggestion such as ``did you mean 'concurrency'?``, or None if nothing is near."""
    near = get_close_matches(word, list(choices), n=1, cutoff=0.6)
    return f"did you mean {near[0]!r}?" if near else None


def every_one_failed(noun: str, errors: Sequence[str], asked: int) -> str | None:
    """Why nothing came of ``asked`` requests that left these errors; None if one came through."""
    if asked == 0 or len(errors) < asked:
        return None
    return f"every {noun} failed; the first said: {errors[0]}"
