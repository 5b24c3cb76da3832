"""One launch: an engine is started, its trials are played, it is stopped and its memory awaited.

Method: ``run_launch`` holds what every engine has in common: its log, the times of start and stop,
and a start that fails. How an engine is started and played is said by ``launch_vllm``,
``launch_reference`` and ``launch_kvpress``.

Not covered: which launch comes when (``local``), and servers that are running already (``served``).
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from harness.errors import InputError, KvbenchError, ServerStartError
from harness.execute.bench import Bench, Turn
from harness.scenario import slugify
from harness.store import server_log
from harness.units import Seconds


class Stoppable(Protocol):
    """An engine that runs."""

    def stop(self) -> Seconds:
        """End it; returns the time taken."""


E = TypeVar("E", bound=Stoppable)


class Launch(ABC, Generic[E]):
    """What one engine does in a launch."""

    def __init__(self, bench: Bench, turn: Turn) -> None:
        self.bench = bench
        self.turn = turn

    @property
    def name(self) -> str:
        """What the launch's log is called by."""
        return slugify(self.turn.trial.variant)

    @abstractmethod
    def start(self, log: Path) -> E:
        """Start the engine and wait until it is ready.

        Raises:
            ServerStartError, InputError: it can't be started, or did not get ready.
        """

    @abstractmethod
    def play(self, engine: E) -> None:
        """Play what the turn holds."""

    def failed(self, error: KvbenchError, log: Path) -> None:
        """Seal what can't be played without the engine."""
        self.bench.start_failed(self.turn.pending, error, log)


def run_launch(launch: Launch[E]) -> None:
    """Start, play and stop one engine; a failed start fails or skips its trials."""
    bench, trial = launch.bench, launch.turn.trial
    log = server_log(bench.folder, f"{trial.launch:03d}-{launch.name}")
    began = time.monotonic()
    try:
        engine = launch.start(log)
    except (ServerStartError, InputError) as error:
        bench.spent.startup_s += time.monotonic() - began
        launch.failed(error, log)
        return
    bench.spent.startup_s += time.monotonic() - began
    try:
        launch.play(engine)
    finally:
        bench.progress.stopping()
        bench.spent.stop_s += engine.stop() + bench.memory.await_back(trial)
