"""What the sampler asks of a source, and how a source tells that it could not read.

A source never raises for something that the machine or the server did: it hands back samples
whose fields are None and notes why in its ``problems``. So a failing source leaves a visible
gap in the record, and no false zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from harness.record import Sample
from harness.units import Seconds


@dataclass(slots=True)
class Problems:
    """How often a source could not read something, and what it was told the first time."""

    count: int = 0
    first_message: str | None = None

    def note(self, message: str) -> None:
        """Count one failed reading; the first message is kept, being nearest to the cause."""
        self.count += 1
        if self.first_message is None:
            self.first_message = message


@dataclass(frozen=True, slots=True)
class SourceProblem:
    """The failed readings of one source, for the log and the report."""

    source: str
    count: int
    first_message: str


class Source(Protocol):
    """Something that can be read again and again from one thread."""

    @property
    def problems(self) -> Problems:
        """Failed readings so far."""
        ...

    def read(self, now: Seconds) -> Sequence[Sample]:
        """Read once; ``now`` is the trial's clock just before the call."""
        ...

    def close(self) -> None:
        """Let go of whatever is held open; nothing is read after."""
        ...
