"""How a running bench looks: a live line on a terminal, plain lines elsewhere.

Both say the same: which trial of how many, requests done, tokens per second, KV in use, time
left. Everything goes to standard error. On a terminal the current step is one line that changes;
what is finished scrolls up as plain lines. Elsewhere a line is printed when a step begins, when a
server's stage changes, and every few seconds of load, so that a log stays readable.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self, TextIO

from rich.console import Console
from rich.live import Live
from rich.text import Text

from harness.characters import printable
from harness.execute.facts import granted_text
from harness.load import LoadProgress
from harness.record import GrantedKv
from harness.scenario import Trial
from harness.units import (
    Seconds,
    format_duration,
    format_percent,
    format_rate,
)

PLAIN_INTERVAL_S: Seconds = 10.0
RATE_WINDOW_S: Seconds = 10.0


class BenchProgress:
    """Shows a bench on ``stream``; time left starts from ``expected_s`` and is corrected.

    ``skips`` is the number of trials of which it is known that they will be skipped.
    """

    def __init__(
        self, expected_s: Seconds | None, stream: TextIO | None = None, *, skips: int = 0
    ) -> None:
        self._console = Console(file=stream or sys.stderr, highlight=False, soft_wrap=True)
        self._live = (
            Live(console=self._console, refresh_per_second=8, transient=True)
            if self._console.is_terminal
            else None
        )
        self._expected_s = expected_s
        self._began = time.monotonic()
        self._stage: str | None = None
        self._last_line_s = float("-inf")
        self._trial_text = ""
        self._played = 0
        self._skips = skips
        self._ahead = 0
        self._in_load: tuple[int, int] = (0, 0)
        self._chunks: deque[tuple[Seconds, int]] = deque()

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def preparing(self, what: str) -> None:
        """A line per step of the preparation."""
        self._line(what)

    def launching(self, group: Sequence[Trial], number: int, launches: int) -> None:
        """A line per launch."""
        trial = group[0]
        self._stage = None
        what = "launch" if trial.attach is None else "round on the running server"
        self._line(
            f"{what} {number}/{launches}: variant {trial.variant}, repeat {trial.repeat + 1}"
        )

    def starting(self, stage: str, elapsed_s: Seconds) -> None:
        """The stage of the start; a plain line when it changes."""
        if self._live is None and stage == self._stage:
            return
        self._stage = stage
        self._current(f"  server: {stage} ({format_duration(elapsed_s)})")

    def healthy(self, startup_s: Seconds | None, granted: GrantedKv) -> None:
        """The server is up."""
        took = f" after {format_duration(startup_s)}" if startup_s is not None else ""
        self._line(f"  server healthy{took}; {granted_text(granted)}")

    def trial(self, trial: Trial, number: int, trials: int) -> None:
        """A trial begins."""
        self._played += 1
        self._ahead = trials - number
        self._in_load = (0, 0)
        self._trial_text = f"trial {number}/{trials}"
        self._last_line_s = float("-inf")
        self._line(f"  {self._trial_text}: {trial.workload.label}")

    def load(self, progress: LoadProgress, kv_usage: float | None) -> None:
        """How far the load is."""
        self._in_load = (progress.requests_done, progress.requests_total)
        self._rate(progress)
        now = time.monotonic()
        if self._live is None and now - self._last_line_s < PLAIN_INTERVAL_S:
            return
        self._last_line_s = now
        self._current(f"    {self._trial_text}: {self._load_text(progress, kv_usage)}")

    def _load_text(self, progress: LoadProgress, kv_usage: float | None) -> str:
        parts = [
            f"{progress.phase} {progress.requests_done}/{progress.requests_total} requests",
            format_rate(self._rate(progress), "tok/s"),
            f"KV in use {format_percent(kv_usage, 0)}",
        ]
        if progress.requests_failed:
            parts.append(f"{progress.requests_failed} failed")
        left = self._left_s()
        if left is not None:
            parts.append(f"about {format_duration(left)} left")
        return ", ".join(parts)

    def _rate(self, progress: LoadProgress) -> float | None:
        """Content chunks per second over the last seconds: about a token each."""
        seen = self._chunks
        if seen and (seen[-1][1] > progress.chunks or seen[-1][0] > progress.t_s):
            seen.clear()
        seen.append((progress.t_s, progress.chunks))
        while len(seen) > 2 and seen[0][0] < progress.t_s - RATE_WINDOW_S:
            seen.popleft()
        span_s = seen[-1][0] - seen[0][0]
        return (seen[-1][1] - seen[0][1]) / span_s if span_s > 0 else None

    def _left_s(self) -> Seconds | None:
        """Time left: from what was done so far once a trial is done, else from the estimate.

        Trials that were measured before a resume, and those that are skipped, took no time.
        """
        elapsed_s = time.monotonic() - self._began
        if self._played <= 1 and self._expected_s is not None:
            return max(0.0, self._expected_s - elapsed_s)
        finished, total = self._in_load
        part = finished / total if total else 0.0
        done = self._played - 1 + part
        left = 1 - part + max(0, self._ahead - self._skips)
        return elapsed_s * left / done if self._played and done > 0 else None

    def quality(self, what: str, done: int, total: int) -> None:
        """How far the questions are; a plain line at the first, the last and now and then."""
        now = time.monotonic()
        due = done in (1, total) or now - self._last_line_s >= PLAIN_INTERVAL_S
        if self._live is None and not due:
            return
        self._last_line_s = now
        self._current(f"    quality, {what}: {done}/{total}")

    def unplayed(self, trial: Trial, status: str, reason: str) -> None:
        """A trial that was skipped or failed, with the first line of its reason."""
        self._skips -= 1 if status == "skipped" and self._skips else 0
        first = reason.splitlines()[0] if reason else "no reason given"
        self._line(f"  {status}: {trial.trial_id}: {first[:300]}")

    def stopping(self) -> None:
        """The server is told to stop."""
        self._current("  stopping the server")

    def warn(self, text: str) -> None:
        """A line that begins with ``warning``."""
        self._line(f"warning: {text}")

    def _line(self, text: str) -> None:
        self._print(lambda: self._console.print(Text(printable(text))))

    def _current(self, text: str) -> None:
        if self._live is not None:
            live = self._live
            self._print(lambda: live.update(Text(printable(text)), refresh=True))
        else:
            self._line(text)

    @staticmethod
    def _print(act: Callable[[], None]) -> None:
        # A terminal that is gone or a log on a full disk must not cost a measurement.
        with contextlib.suppress(OSError):
            act()
