"""What an estimate rests on: runs of the same kind, and it says which parts they told."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from harness.execute.estimate import ASSUMED, estimate
from harness.execute.local import run_scenario
from harness.execute.progress import Silent
from harness.scenario import load_scenario
from harness.store import read_manifest, write_bench
from tests.execute.test_local import CONFIG, Told, scenario

QUALITY = ("quality.num_prompts=2", "quality.context_tokens=64", "quality.answer_tokens=8")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(CONFIG)
    return folder


def measured(tmp_path: Path, wanted: Any) -> Path:
    return run_scenario(wanted, root=tmp_path / "r", command=["test"], progress=Silent())


def test_an_attached_run_says_nothing_of_servers_launched_here(
    tmp_path: Path, model: Path, standin: Any
) -> None:
    wanted = scenario(tmp_path, model, *QUALITY)
    before = estimate(wanted, tmp_path / "r")
    attached = load_scenario(tmp_path / "demo.yaml", "cpu", overrides=QUALITY, attach=standin.url())
    folder = measured(tmp_path, attached)
    # Its questions took a fixed time, which would show in the sum.
    write_bench(folder, dataclasses.replace(read_manifest(folder), quality_s=10_000.0))
    after = estimate(wanted, tmp_path / "r")
    assert after == before
    assert after.basis.startswith("assumed rates")
    assert after.basis.endswith("no earlier run like this one is stored here")
    # The same server again is another matter; another address is not.
    again = estimate(attached, tmp_path / "r")
    assert again.total_s > 10_000
    assert again.basis.startswith(f"the run {folder.name} on this profile")
    other = load_scenario(
        tmp_path / "demo.yaml", "cpu", overrides=QUALITY, attach="http://127.0.0.1:9/v1"
    )
    assert estimate(other, tmp_path / "r").total_s < 10_000


@pytest.mark.usefixtures("fake_engine")
def test_the_basis_names_each_part_that_an_earlier_run_told(tmp_path: Path, model: Path) -> None:
    folder = measured(tmp_path, scenario(tmp_path, model))
    same = estimate(scenario(tmp_path, model), tmp_path / "r")
    assert same.basis == f"the run {folder.name} on this profile"
    # Another load: only the starts are known.
    longer = scenario(tmp_path, model, "workloads.0.context_tokens=128")
    assert estimate(longer, tmp_path / "r").basis.startswith(
        f"the run {folder.name} for starts of servers, else assumed rates"
    )
    # With questions that it did not ask.
    asking = estimate(scenario(tmp_path, model, *QUALITY), tmp_path / "r")
    assert asking.basis.startswith(
        f"the run {folder.name} for starts of servers, 2 of 2 trials, else assumed rates"
    )


@pytest.mark.usefixtures("fake_engine")
def test_a_run_of_another_model_is_no_basis(tmp_path: Path, model: Path) -> None:
    measured(tmp_path, scenario(tmp_path, model))
    other = tmp_path / "other"
    other.mkdir()
    (other / "config.json").write_text(CONFIG)
    expected = estimate(scenario(tmp_path, other), tmp_path / "r")
    assert expected.basis.startswith("assumed rates")
    # Two launches of 35 s start and 5 s stop each, and the loads.
    rates = ASSUMED["cpu"]
    assert expected.total_s > 2 * (rates.startup_s + rates.stop_s)


def test_variants_that_will_be_skipped_take_no_time(tmp_path: Path, model: Path) -> None:
    rest = estimate(scenario(tmp_path, model, *QUALITY, "repeats=2"), tmp_path / "r")
    fp4 = "variants.fp4={kv_cache_dtype: nvfp4}"
    swept = estimate(scenario(tmp_path, model, *QUALITY, "repeats=2", fp4), tmp_path / "r")
    assert (rest.launches, rest.trials, rest.skipped) == (4, 4, ())
    assert (swept.launches, swept.trials, swept.skipped) == (4, 4, ("fp4",))
    assert swept.total_s == pytest.approx(rest.total_s)
    assert swept.quality_s == pytest.approx(rest.quality_s)


def test_where_all_will_be_skipped_nothing_is_started_and_nothing_asked(
    tmp_path: Path, model: Path
) -> None:
    alone = ("variants={fp4: {kv_cache_dtype: nvfp4}}", "baseline=fp4")
    told = estimate(scenario(tmp_path, model, *QUALITY, *alone), tmp_path / "r")
    # Not None, which stands for a server that is running already.
    assert (told.launches, told.trials, told.total_s, told.judge_s) == (0, 0, 0.0, None)


def test_the_judges_time_is_part_of_the_questions(tmp_path: Path, model: Path) -> None:
    """2 pairs and 4 controls of each of 3 kinds, in both orders: 28 questions.

    Each is 100 + 64 + 2 × 8 = 180 tokens at 600 a second and a verdict of 50 tokens at 4 × 25 a
    second: 0.3 + 0.5 s.
    """

    def asked(*changes: str) -> Any:
        return estimate(scenario(tmp_path, model, *QUALITY, *changes), tmp_path / "r")

    without = asked("repeats=2", "quality.judge=off")
    assert without.judge_s is None
    judged = asked("repeats=2")
    assert judged.judge_s == pytest.approx(28 * 0.8)
    assert judged.quality_s == pytest.approx(without.quality_s + 28 * 0.8)
    assert judged.total_s == pytest.approx(without.total_s + 28 * 0.8)
    # With one repeat no launch of the baseline comes after the variant's.
    assert asked("repeats=1").judge_s is None
    # A named judge needs no launch; 2 s for each, four at once.
    named = "quality.judge={url: 'http://127.0.0.1:9/v1', model: m}"
    assert asked("repeats=1", named).judge_s == pytest.approx(28 * 2 / 4)


def test_a_judge_has_nothing_to_do_where_only_the_baseline_answers(
    tmp_path: Path, model: Path
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "config.json").write_text(CONFIG)
    changes = ("repeats=2", f"variants.fp8={{model: {other}}}")
    told = estimate(scenario(tmp_path, model, *QUALITY, *changes), tmp_path / "r")
    # Two passes of two prompts: 2 × 64 / 600 + 8 / 25 s each.
    assert told.judge_s is None
    assert told.quality_s == pytest.approx(2 * 2 * (2 * 64 / 600 + 8 / 25))


def test_what_a_bench_told_is_no_part_of_an_estimate(tmp_path: Path, model: Path) -> None:
    # A run in which nothing was measured finishes, too, and is no basis.
    path = tmp_path / "demo.yaml"
    wanted = scenario(tmp_path, model)
    before = estimate(wanted, tmp_path / "r")
    gone = load_scenario(path, "cpu", attach="http://127.0.0.1:9/v1")
    run_scenario(gone, root=tmp_path / "r", command=["test"], progress=Told())
    assert estimate(wanted, tmp_path / "r") == before
