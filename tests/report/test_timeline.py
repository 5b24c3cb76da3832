from __future__ import annotations

import math
from dataclasses import replace

from harness.analysis.compare import analyse
from harness.record import EngineSample
from harness.report import timeline
from harness.report.charts import MAX_COLUMNS, occupancy
from tests import records


def test_time_begins_with_the_load_and_warm_up_is_left_out() -> None:
    trial = records.trial()
    start = trial.run.load_start_s
    assert start is not None
    line = timeline._timeline(trial, None, {"fp16": 0})
    assert min(line.times_s) >= 0
    assert len(line.times_s) < len(trial.engine_samples)


def test_the_usable_pool_is_one_block_short_of_the_granted_one() -> None:
    line = timeline._timeline(records.trial(), None, {"fp16": 0})
    # 40 blocks, one of them the null block: 39 × 128 = 4,992 tokens.
    assert (line.pool, line.in_tokens) == (4992.0, True)


def test_a_pool_of_unknown_size_is_drawn_as_a_share() -> None:
    trial = records.trial()
    unknown = replace(trial, run=replace(trial.run, server=None))
    line = timeline._timeline(unknown, None, {"fp16": 0})
    assert (line.pool, line.in_tokens) == (1.0, False)
    assert max(line.kv_used) <= 1.0


def test_a_queue_that_nobody_read_is_a_gap_and_a_dash_never_an_idle_server() -> None:
    trial = records.trial()
    unread = replace(
        trial,
        engine_samples=tuple(
            replace(sample, requests_running=None, requests_waiting=None)
            for sample in trial.engine_samples
        ),
    )
    line = timeline._timeline(unread, None, {"fp16": 0})
    assert set(line.running) == set(line.waiting) == {None}
    assert timeline._timeline_alt(line).endswith("at most — requests run and — wait")
    figure = occupancy([line])
    queue = figure.axes[1]
    assert [text.get_text() for text in queue.texts] == ["not read"]
    assert all(math.isnan(y) for drawn in queue.lines for y in drawn.get_ydata())


def test_a_moment_that_nobody_read_leaves_the_others_their_peak() -> None:
    trial = records.trial()
    samples = trial.engine_samples
    first = replace(samples[0], requests_running=None)
    line = timeline._timeline(
        replace(trial, engine_samples=(first, *samples[1:])), None, {"fp16": 0}
    )
    whole = timeline._timeline(trial, None, {"fp16": 0})
    assert timeline._timeline_alt(line) == timeline._timeline_alt(whole)
    occupancy([line])


def test_the_axis_of_the_queues_holds_the_longest_of_all_columns() -> None:
    line = timeline._timeline(records.trial(), None, {"fp16": 0})
    long = replace(line, waiting=tuple(100.0 for _ in line.times_s))
    for lines in ([long, line], [line, long]):
        # A quarter above the longest: 100 × 1.25.
        assert [axes.get_ylim()[1] for axes in occupancy(lines).axes[2:]] == [125.0, 125.0]


def test_thinning_keeps_the_fullest_moment() -> None:
    samples = [EngineSample(t_s=float(t), kv_cache_usage=0.1) for t in range(5000)]
    samples[3333] = EngineSample(t_s=3333.0, kv_cache_usage=0.97)
    kept = timeline._thin(samples)
    assert len(kept) <= timeline.MAX_MOMENTS
    assert max(sample.kv_cache_usage or 0 for sample in kept) == 0.97
    assert [sample.t_s for sample in kept] == sorted(sample.t_s for sample in kept)


def test_preemptions_are_marked_where_the_counter_grew_during_the_load() -> None:
    trial = records.trial("fp16", records.KV_BOUND)
    line = timeline._timeline(trial, None, {"fp16": 0})
    assert len(line.preempted_at_s) == 3
    assert all(moment > 0 for moment in line.preempted_at_s)


def test_each_workload_gets_a_chart_whose_title_tells_the_peaks() -> None:
    bench, trials = records.bench(1)
    made = list(timeline.charts_over_time(analyse(bench, trials), trials, {"fp16": 0, "fp8": 1}))
    assert [chart.name for chart in made] == ["kv-over-time-1", "kv-over-time-2"]
    assert made[1].title.startswith("kv-bound: KV use peaks at 100 % with fp16 (preempting), 9")
    assert "requests run" in made[1].alt


def test_a_title_gives_the_peak_of_the_tables_and_the_caption_that_of_the_repeat_drawn() -> None:
    bench, trials = records.bench(3, workloads=(records.EXERCISE,))
    # The first repeat alone is emptier: three peaks of which the middle one is not its own.
    low = [
        replace(
            trial,
            engine_samples=tuple(
                replace(sample, kv_cache_usage=(sample.kv_cache_usage or 0.0) / 2)
                for sample in trial.engine_samples
            ),
        )
        if trial.run.trial.repeat == 0
        else trial
        for trial in trials
    ]
    analysis = analyse(bench, low)
    (made,) = timeline.charts_over_time(analysis, low, {"fp16": 0, "fp8": 1})
    cell = analysis.comparisons[0].cell("kv_usage_peak", "fp16")
    assert cell is not None
    assert cell.value is not None
    assert f"peaks at {cell.value:.0%}".replace("%", " %") + " with fp16" in made.title
    drawn = f"{cell.value / 2:.1%}".replace("%", " %")
    assert f"median over the repeats, as in the tables; in the repeat drawn it is {drawn}" in (
        made.caption
    )


def test_one_variant_more_than_there_is_room_for_is_one() -> None:
    names = ("fp16", *(f"v{number}" for number in range(MAX_COLUMNS)))
    bench, trials = records.bench(1, variants=names, workloads=(records.EXERCISE,))
    places = {name: place for place, name in enumerate(names)}
    (made,) = timeline.charts_over_time(analyse(bench, trials), trials, places)
    assert "1 more variant is in the results." in made.caption


def test_a_trial_that_never_finished_is_not_drawn() -> None:
    bench, trials = records.bench(1)
    broken = [records.half_written(trial) for trial in trials]
    assert not list(timeline.charts_over_time(analyse(bench, broken), broken, {}))
