"""Reads every source at a steady rate while a trial runs, and knows what that costs.

Method: one thread per source, so that a slow ``/metrics`` never delays a reading of memory. The
n-th reading is due at ``start + n × interval``, so the rate does not drift; readings that could
not be taken in time are left out and not made up for. Entering the sampler returns when every
source was read once, and leaving it takes one last reading of each: whatever is measured in
between lies inside the samples.

The cost is the CPU time of the sampler's own threads. What a reading costs the process that is
read (vLLM renders ``/metrics`` in its API server) is not in it; ``docs/telemetry.md`` gives it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import TracebackType

from harness.clock import Clock
from harness.record import Sample
from harness.telemetry.source import Problems, Source, SourceProblem
from harness.units import Fraction, Seconds

# Above the 5 Hz that is promised; a faster rate mostly costs the server (docs/telemetry.md).
DEFAULT_INTERVAL_S: Seconds = 0.15

Sink = Callable[[Sample], None]
#: Waits until the event is set or so many seconds are over; says whether it was set.
Wait = Callable[[threading.Event, Seconds], bool]


@dataclass(slots=True)
class _Reader:
    """One source with the thread that reads it, and that thread's bookkeeping."""

    source: Source
    first_read: threading.Event = field(default_factory=threading.Event)
    unexpected: Problems = field(default_factory=Problems)
    cpu_s: Seconds = 0.0
    readings: int = 0
    thread: threading.Thread | None = None


class Sampler:
    """Samples ``sources`` into ``sink`` from entry to exit.

    ``sink`` is called from the sampler's threads, one call at a time. Nothing that a source or
    the sink does comes out of the sampler as an exception; it is counted in ``problems``.
    ``monotonic`` and ``wait`` are the time that readings are due on; tests give their own.
    """

    def __init__(
        self,
        sources: Sequence[Source],
        clock: Clock,
        sink: Sink,
        interval_s: Seconds = DEFAULT_INTERVAL_S,
        monotonic: Callable[[], Seconds] = time.monotonic,
        wait: Wait = threading.Event.wait,
    ) -> None:
        self.interval_s = interval_s
        self._monotonic = monotonic
        self._wait = wait
        self._clock = clock
        self._sink = sink
        self._sink_lock = threading.Lock()
        self._sink_problems = Problems()
        self._stop = threading.Event()
        self._readers = tuple(_Reader(source) for source in sources)
        self._entered_s: Seconds | None = None
        self._left_s: Seconds | None = None

    def __enter__(self) -> Sampler:
        self._entered_s = self._clock.now()
        for reader in self._readers:
            name = f"sampler-{type(reader.source).__name__}"
            reader.thread = threading.Thread(
                target=self._run, args=(reader,), name=name, daemon=True
            )
            reader.thread.start()
        for reader in self._readers:
            reader.first_read.wait()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        for reader in self._readers:
            if reader.thread is not None:
                reader.thread.join()
        self._left_s = self._clock.now()

    @property
    def cpu_share(self) -> Fraction | None:
        """CPU time of the sampler's threads / wall time since entry; 0.02 is 2 % of one core."""
        if self._entered_s is None:
            return None
        wall_s = (self._left_s or self._clock.now()) - self._entered_s
        return sum(reader.cpu_s for reader in self._readers) / wall_s if wall_s > 0 else None

    @property
    def readings(self) -> dict[str, int]:
        """How often each source was read, by the name of its class."""
        return {type(reader.source).__name__: reader.readings for reader in self._readers}

    @property
    def problems(self) -> tuple[SourceProblem, ...]:
        """Sources that could not be read at times, and the sink if it refused a sample."""
        noted = [("sink", self._sink_problems)]
        for reader in self._readers:
            name = type(reader.source).__name__
            noted += [(name, reader.source.problems), (name, reader.unexpected)]
        return tuple(
            SourceProblem(name, found.count, found.first_message)
            for name, found in noted
            if found.first_message is not None
        )

    def _run(self, reader: _Reader) -> None:
        started_s = self._monotonic()
        tick = 0
        while True:
            self._read(reader)
            reader.cpu_s = time.thread_time()
            reader.first_read.set()
            tick = max(tick + 1, int((self._monotonic() - started_s) / self.interval_s) + 1)
            due_s = started_s + tick * self.interval_s
            if self._wait(self._stop, due_s - self._monotonic()):
                break
        self._read(reader)
        reader.cpu_s = time.thread_time()

    def _read(self, reader: _Reader) -> None:
        try:
            samples = reader.source.read(self._clock.now())
        except Exception as error:  # a bug in a source must cost its samples, not the trial
            reader.unexpected.note(f"{type(error).__name__}: {error}")
            return
        reader.readings += 1
        with self._sink_lock:
            for sample in samples:
                self._deliver(sample)

    def _deliver(self, sample: Sample) -> None:
        try:
            self._sink(sample)
        except Exception as error:  # the trial goes on; the gap is told in problems
            self._sink_problems.note(f"{type(error).__name__}: {error}")
