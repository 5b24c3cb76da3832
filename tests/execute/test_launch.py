"""What every launch has in common: its times, its log, its end, and a start that fails."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.errors import EngineMissing, KvbenchError, ServerStartError
from harness.execute import other_benches
from harness.execute.bench import Bench, Turn
from harness.execute.launch import Launch, run_launch
from harness.execute.prepare import Wanted, open_bench
from harness.execute.progress import Silent
from harness.scenario import expand
from harness.units import Seconds
from tests.execute.test_reference import SCENARIO
from tests.execute.test_reference import scenario as reference_scenario


class Engine:
    """Takes its time to stop."""

    stopped = False

    def stop(self) -> Seconds:
        self.stopped = True
        return 0.25


class Made(Launch[Engine]):
    """A launch of that engine; ``error`` is raised at the start, ``trouble`` while it plays."""

    error: Exception | None = None
    trouble: BaseException | None = None
    engine = Engine()
    log: Path | None = None
    said: KvbenchError | None = None

    def start(self, log: Path) -> Engine:
        self.log = log
        time.sleep(0.02)
        if self.error is not None:
            raise self.error
        return self.engine

    def failed(self, error: KvbenchError, log: Path) -> None:
        self.said = error
        super().failed(error, log)

    def play(self, engine: Engine) -> None:
        assert engine is self.engine
        if self.trouble is not None:
            raise self.trouble


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Made]:
    monkeypatch.setattr(other_benches, "cache_root", lambda: tmp_path / "cache")
    model = tmp_path / "model"
    model.mkdir()
    assert "engine: reference" in SCENARIO
    wanted = reference_scenario(tmp_path, model)
    trials = expand(wanted)
    known = {trial.model: None for trial in trials}
    asked = Wanted(wanted, trials, tmp_path / "results", ("test",), False, 1)
    with contextlib.ExitStack() as held:
        bench: Bench = open_bench(asked, known, Silent(), held)
        launch = Made(bench, Turn(trials[0], trials[:1], 0, len(trials)))
        launch.engine = Engine()
        yield launch


def test_start_and_stop_are_timed_and_the_log_is_the_variants(made: Made) -> None:
    run_launch(made)
    assert made.log is not None
    assert made.log == made.bench.folder / "servers" / f"000-{made.name}.log"
    assert made.engine.stopped
    assert made.bench.spent.startup_s >= 0.02
    assert made.bench.spent.stop_s == 0.25


def test_an_engine_is_stopped_whatever_happens_while_it_plays(made: Made) -> None:
    made.trouble = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        run_launch(made)
    assert made.engine.stopped
    assert made.bench.spent.stop_s == 0.25


def test_a_start_that_fails_seals_its_trials_with_the_reason_and_costs_its_time(made: Made) -> None:
    made.error = ServerStartError("no room for the weights", kind="memory")
    run_launch(made)
    assert made.said is made.error
    assert not made.engine.stopped
    assert made.bench.spent.startup_s >= 0.02
    (folder,) = made.bench.folder.glob("*/run.json")
    assert "no room for the weights" in folder.read_text()
    # Memory may be there at the next try.
    assert made.bench.final_failures == {}


def test_a_reason_that_can_not_change_holds_for_the_variant(made: Made) -> None:
    made.error = ServerStartError("this device does not take it", kind="unsupported")
    run_launch(made)
    skipped, reason = made.bench.final_failures[made.turn.trial.variant]
    assert skipped
    assert "does not take it" in reason


def test_an_engine_that_is_not_installed_ends_the_run(made: Made) -> None:
    made.error = EngineMissing("transformers is not installed")
    with pytest.raises(EngineMissing):
        run_launch(made)
