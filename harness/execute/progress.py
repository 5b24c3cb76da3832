"""What a running bench tells whoever watches it: a terminal, a log, or nobody."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from harness.load import LoadProgress
from harness.record import GrantedKv
from harness.scenario import Trial
from harness.units import Seconds


class Progress(Protocol):
    """Calls come from one thread, in order, several times a second where something goes on."""

    def preparing(self, what: str) -> None:
        """Something that happens once and takes a while, such as fetching the model."""

    def launching(self, group: Sequence[Trial], number: int, launches: int) -> None:
        """A server launch begins: launch ``number`` (from 1) of ``launches``."""

    def starting(self, stage: str, elapsed_s: Seconds) -> None:
        """What the starting server is doing."""

    def healthy(self, startup_s: Seconds | None, granted: GrantedKv) -> None:
        """The server answers, and this is its KV pool; it was not started here if None."""

    def trial(self, trial: Trial, number: int, trials: int) -> None:
        """A trial begins: number ``number`` (from 1) of ``trials``."""

    def load(self, progress: LoadProgress, kv_usage: float | None) -> None:
        """How far the load is, and how full the KV pool."""

    def quality(self, what: str, done: int, total: int) -> None:
        """How far the questions about answer quality are."""

    def unplayed(self, trial: Trial, status: str, reason: str) -> None:
        """A trial ended without a sealed measurement."""

    def stopping(self) -> None:
        """The server is being stopped."""

    def warn(self, text: str) -> None:
        """Something the user should know, though the bench goes on."""


class Silent(Progress):
    """Tells nobody."""
