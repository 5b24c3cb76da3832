from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from harness import store
from harness.analysis.run_comparison_json import SCHEMA, SCHEMA_VERSION
from harness.cli.app import build
from harness.errors import InputError, NotFound
from tests import records
from tests.analysis import runs
from tests.analysis.runs import Stored
from tests.report.stored import store_run

ROOT = Path(__file__).resolve().parents[2]
A = runs.run()
GATE = ["--fail-on", "output_throughput<-5%", "--fail-on", "kv_bytes_per_token>+0%"]


@pytest.fixture
def put(tmp_path: Path) -> Callable[[Stored], str]:
    """Store a run and return its id."""

    def stored(made: Stored) -> str:
        store_run(*made, tmp_path / "results")
        return made[0].run_id

    return stored


@pytest.fixture
def compare(tmp_path: Path) -> Callable[..., Result]:
    def asked(*words: str) -> Result:
        where = ["--out", str(tmp_path / "results"), "--reports", str(tmp_path / "reports")]
        every = ["compare", *words, *where]
        return CliRunner().invoke(build(every), every, catch_exceptions=False)

    return asked


def later(factor: float = 1.0, base: Stored = A, name: str = "20300103-000000-later") -> Stored:
    return runs.all_slower(runs.again(base, name), factor)


def test_a_planted_loss_of_a_tenth_exits_with_1(
    put: Callable[[Stored], str], compare: Callable[..., Result]
) -> None:
    done = compare(put(A), put(later(1 / 0.9)), *GATE)
    assert done.exit_code == 1
    assert "The gate answers fail: of 4 checks 2 fail, 2 pass." in done.stdout


def test_a_run_against_itself_exits_with_0(
    put: Callable[[Stored], str], compare: Callable[..., Result]
) -> None:
    name = put(A)
    assert compare(name, name, *GATE).exit_code == 0
    assert compare(name, name).exit_code == 0


def test_a_single_replicate_exits_with_3(
    put: Callable[[Stored], str], compare: Callable[..., Result]
) -> None:
    one = runs.run(1)
    done = compare(put(one), put(later(base=one)), *GATE)
    assert done.exit_code == 3
    assert "1 of the 3 repeats that one needs" in done.stdout


def test_what_the_engine_grants_decides_with_a_single_replicate(
    put: Callable[[Stored], str], compare: Callable[..., Result]
) -> None:
    one = runs.run(1)
    assert compare(put(one), put(later(base=one)), "--fail-on", GATE[3]).exit_code == 0


def test_unlike_runs_exit_with_2_unless_it_is_insisted(
    put: Callable[[Stored], str], compare: Callable[..., Result]
) -> None:
    one, other = put(A), put(runs.in_scenario(later(), model="another/model"))
    with pytest.raises(InputError, match="their model differs") as caught:
        compare(one, other)
    assert caught.value.exit_code == 2
    done = compare(one, other, "--force-unlike")
    assert done.exit_code == 0
    assert "differs, unlike: model: smollm2-135m-instruct | another/model" in done.stdout
    assert "unlike runs were compared because it was asked for" in done.stdout


def test_between_two_profiles_no_speed_is_a_pass_or_a_fail(
    put: Callable[[Stored], str], compare: Callable[..., Result], tmp_path: Path
) -> None:
    names = put(A), put(runs.on_machine(later(20.0), profile="cuda"))
    done = compare(*names, "--force-unlike", *GATE)
    assert done.exit_code == 3
    assert "of 4 checks 2 inconclusive, 2 pass" in done.stdout
    (page,) = tmp_path.rglob("compare.html")
    for told in (done.stdout, page.read_text()):
        assert "never the effect of a strategy" in " ".join(told.split())


def test_runs_of_other_scenarios_with_the_same_loads_are_compared_and_the_name_is_told(
    put: Callable[[Stored], str], compare: Callable[..., Result]
) -> None:
    bench, trials = later()
    other = put((replace(bench, scenario_name="nightly"), trials))
    done = compare(put(A), other)
    assert done.exit_code == 0
    assert "differs: scenario: fp8_vs_fp16 | nightly" in done.stdout


def test_json_alone_is_on_standard_output_with_its_schema(
    put: Callable[[Stored], str], compare: Callable[..., Result]
) -> None:
    done = compare(put(A), put(later(1 / 0.9)), *GATE, "--json")
    told = json.loads(done.stdout)
    assert (told["schema"], told["schema_version"]) == (SCHEMA, SCHEMA_VERSION)
    assert [run["label"] for run in told["runs"]] == ["A", "B"]
    assert told["gate"]["verdict"] == "fail"
    assert told["gate"]["exit_code"] == done.exit_code == 1
    assert Path(told["page"]).is_file()
    assert "The gate answers fail" in done.stderr
    cell = _cell(told, "fp16", "output_throughput", "B")
    assert cell["ratio"] == pytest.approx(0.9)
    assert cell["low"] < 0.9 < cell["high"] < 0.95
    assert len(cell["replicates"]) == 3


def _cell(told: dict[str, Any], variant: str, metric: str, run: str) -> dict[str, Any]:
    pair = next(pair for pair in told["pairs"] if pair["variant"] == variant)
    row = next(row for row in pair["rows"] if row["metric"] == metric)
    found: dict[str, Any] = row["cells"][run]
    return found


def test_the_json_s_keys_are_those_that_are_documented(
    put: Callable[[Stored], str], compare: Callable[..., Result]
) -> None:
    told = json.loads(
        compare(put(A), put(runs.on_machine(later(), cpu="x")), *GATE, "--json").stdout
    )
    pair, check = told["pairs"][0], told["gate"]["checks"][0]
    row = pair["rows"][0]
    documented = (Path(__file__).parents[2] / "docs" / "compare.md").read_text()
    keys = [*told, *told["runs"][0], *told["differences"][0], *pair, *pair["runs"]["A"]]
    keys += [*row, *row["cells"]["B"], *told["gate"], *check, *check["change"]]
    assert not [key for key in keys if f"`{key}`" not in documented]


def test_markdown_alone_is_on_standard_output(
    put: Callable[[Stored], str], compare: Callable[..., Result]
) -> None:
    done = compare(put(A), put(later(1 / 0.9)), *GATE, "--markdown")
    assert done.exit_code == 1
    assert done.stdout.startswith("## kvbench compare\n")
    assert "page: " not in done.stdout
    assert "page: " in done.stderr


def test_two_outputs_at_once_are_refused(compare: Callable[..., Result]) -> None:
    with pytest.raises(InputError, match="one output at a time"):
        compare("a", "b", "--json", "--markdown")


def test_a_rule_is_read_before_anything_else(compare: Callable[..., Result]) -> None:
    with pytest.raises(InputError, match="no metric 'throughput'"):
        compare("missing", "missing", "--fail-on", "throughput<-5%")
    with pytest.raises(InputError, match="no gate to narrow"):
        compare("missing", "missing", "--gate-variant", "fp8")


def test_the_gate_can_be_narrowed(
    put: Callable[[Stored], str], compare: Callable[..., Result]
) -> None:
    fp8_is_slower = runs.with_trials(
        later(), lambda t: runs.slower(t, 2.0) if t.run.trial.variant == "fp8" else t
    )
    names = put(A), put(fp8_is_slower)
    rule = ["--fail-on", "output_throughput<-20%"]
    assert compare(*names, *rule).exit_code == 1
    assert compare(*names, *rule, "--gate-variant", "fp16").exit_code == 0
    assert compare(*names, *rule, "--gate-load", "exercise").exit_code == 1


def test_three_runs_are_held_against_the_first(
    put: Callable[[Stored], str], compare: Callable[..., Result]
) -> None:
    third = put(later(2.0, name="20300104-000000-third"))
    done = compare(put(A), put(later()), third, "--fail-on", "output_throughput<-20%", "--json")
    checks = json.loads(done.stdout)["gate"]["checks"]
    assert {(check["run"], check["verdict"]) for check in checks} == {("B", "pass"), ("C", "fail")}


def test_a_run_that_is_not_there_and_one_alone_are_bad_input(
    put: Callable[[Stored], str], compare: Callable[..., Result]
) -> None:
    name = put(A)
    with pytest.raises(NotFound, match="no stored run 'nowhere'"):
        compare(name, "nowhere")
    with pytest.raises(InputError, match="at least two runs"):
        compare(name)


def test_a_run_that_can_not_be_read_is_bad_input_and_never_a_failed_gate(
    put: Callable[[Stored], str], compare: Callable[..., Result], tmp_path: Path
) -> None:
    one, other = put(A), put(later())
    head = next((tmp_path / "results").glob(f"*/{other}/*/{store.RUN_FILE}"))
    head.write_text(head.read_text()[:200])
    with pytest.raises(InputError, match="damaged") as caught:
        compare(one, other, *GATE)
    assert caught.value.exit_code == 2
    assert str(head) in str(caught.value)


def test_a_page_that_can_not_be_written_is_bad_input_and_never_a_failed_gate(
    put: Callable[[Stored], str], compare: Callable[..., Result], tmp_path: Path
) -> None:
    names = put(A), put(later(1 / 0.9))
    (tmp_path / "reports").write_text("in the way")
    with pytest.raises(InputError, match="can't write the report") as caught:
        compare(*names, *GATE)
    assert caught.value.exit_code == 2
    (tmp_path / "reports").unlink()
    (tmp_path / "reports").mkdir()
    # Found only when the page itself is written.
    (tmp_path / "reports" / "compare").write_text("in the way")
    with pytest.raises(InputError, match="can't write the page") as caught:
        compare(*names, *GATE)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(("reader", "expected"), [("left early", 1), ("full disk", 2)])
def test_an_answer_that_nobody_takes_is_neither_a_pass_nor_a_failed_gate(
    put: Callable[[Stored], str], tmp_path: Path, reader: str, expected: int
) -> None:
    names = put(A), put(later(1 / 0.9))
    words = ["compare", *names, *GATE, "--out", "results", "--reports", "reports"]
    if reader == "full disk":
        out = os.open("/dev/full", os.O_WRONLY)
    else:
        left, out = os.pipe()
        os.close(left)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "harness.cli.app", *words],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=out,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            timeout=120,
        )
    finally:
        os.close(out)
    assert done.returncode == expected, done.stderr
    assert ("can't tell the answer: No space left" in done.stderr) == (reader == "full disk")
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("command", ["compare", "bench", "plan"])
def test_help_names_what_an_option_takes_and_not_its_type_in_python(command: str) -> None:
    told = CliRunner().invoke(build([command, "--help"]), [command, "--help"])
    _, options = told.stdout.split("Options:")
    assert "<list[" not in options
    assert ("--gate-load NAME" if command == "compare" else "--set KEY.PATH=VALUE") in options


def test_a_half_written_run_is_compared_as_far_as_it_went_and_passes_no_gate(
    put: Callable[[Stored], str], compare: Callable[..., Result]
) -> None:
    half = runs.with_trials(
        later(),
        lambda t: {0: t, 1: records.half_written(t), 2: None}[t.run.trial.repeat],
    )
    bench = replace(half[0], status="started")
    done = compare(put(A), put((bench, half[1])), *GATE)
    assert done.exit_code == 3
    assert "1 measured, 1 not finished, 1 never begun" in done.stdout
    assert "run B is not whole" in done.stdout


def test_names_in_a_record_lead_nowhere_and_steer_nothing(
    put: Callable[[Stored], str], compare: Callable[..., Result], tmp_path: Path
) -> None:
    evil = "<img src=x onerror=alert(1)>\x1b[2J|`"
    bench, trials = later()
    scenario = {**bench.scenario, "question": evil}
    run = store_run(replace(bench, run_id="evil"), trials, tmp_path / "results")
    renamed = replace(bench, run_id=f"../{evil}", scenario_name=evil, scenario=scenario)
    store.write_bench(run, renamed)
    done = compare(put(A), str(run), *GATE)
    assert "\x1b" not in done.stdout
    pages = list(tmp_path.rglob("compare.html"))
    assert [page.parents[1] for page in pages] == [tmp_path / "reports" / "compare"]
    assert "<img" not in pages[0].read_text()
