from __future__ import annotations

from dataclasses import replace

from harness.analysis.compare import analyse
from harness.record import BenchRecord, TrialRecord
from harness.report import charts, phases, style
from harness.report.phases import chart_of_phases
from tests import records


def chart(made: tuple[BenchRecord, tuple[TrialRecord, ...]]) -> charts.Chart | None:
    bench, trials = made
    return chart_of_phases(analyse(bench, trials), trials)


def test_the_title_tells_the_shares_of_the_load_under_which_variants_differ_most() -> None:
    made = chart(records.bench(1))
    assert made is not None
    # In these records fp16's pool overfills under kv-bound alone.
    assert made.title.startswith("kv-bound: share of a request's time before its first token: ")
    assert "with fp16" in made.title
    assert "shorter is better" in made.caption
    # fp16 preempted there: its wait is not told apart, and the caption says why.
    assert "can't be told from prefill" in made.caption
    assert "of it waiting" in made.alt


def test_the_loads_of_a_single_variant_are_the_rows_of_one_panel() -> None:
    small = {**records.EXERCISE, "num_prompts": 6, "name": None}
    levels = tuple({**small, "concurrency": n} for n in (1, 2))
    made = chart(records.bench(1, variants=("fp16",), workloads=levels))
    assert made is not None
    with style.drawing():
        figure = made.draw()
    (axes,) = figure.axes
    assert axes.get_title(loc="left") == "fp16"
    rows = [label.get_text() for label in axes.get_yticklabels()]
    assert rows == ["1 at once", "2 at once"]


def test_a_trial_whose_latencies_are_invalid_or_missing_is_left_out() -> None:
    bench, trials = records.bench(1, workloads=(records.EXERCISE,))
    silent = tuple(
        replace(
            trial,
            requests=tuple(
                replace(r, first_chunk_s=None, last_chunk_s=None, chunk_times_s=())
                for r in trial.requests
            ),
        )
        for trial in trials
    )
    assert chart((bench, silent)) is None
    made = chart((bench, (trials[0], silent[1])))
    assert made is not None
    assert "with fp16" in made.title
    assert "fp8" not in made.title


def test_parts_lie_end_to_end_and_add_up() -> None:
    rows = [charts.Parts("a", 3.0, 5.0, queued_s=1.0), charts.Parts("b", 3.0, 5.0)]
    with style.drawing():
        figure = charts.phases([("load", rows)])
    (axes,) = figure.axes
    spans = [(bar.get_x(), bar.get_width()) for bar in axes.patches]
    # a: 1 s waiting, 3 − 1 = 2 s prefill, 5 s decode; b: 3 s not told apart, 5 s decode.
    assert spans == [(0, 1.0), (1.0, 2.0), (3.0, 5.0), (0, 3.0), (3.0, 5.0)]
    keys = [text.get_text() for text in figure.legends[0].get_texts()]
    assert keys == ["waiting", "prefill, to the first token", "either, not told apart", "decode"]
    hatches = {bar.get_hatch() or "" for bar in axes.patches}
    assert len(hatches) == 4


def test_one_load_more_than_there_is_room_for_is_one() -> None:
    small = {**records.EXERCISE, "num_prompts": 3, "name": None}
    levels = tuple({**small, "concurrency": n + 1} for n in range(phases.MAX_GROUPS + 1))
    made = chart(records.bench(1, workloads=levels))
    assert made is not None
    assert "1 more load is in the tables." in made.caption
