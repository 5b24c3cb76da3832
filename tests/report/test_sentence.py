from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from harness import store
from harness.analysis.compare import analyse
from harness.analysis.quality_results import SanityGate
from harness.analysis.results import Analysis, Comparison, Row
from harness.report.sentence import Answer, answer
from tests import records
from tests.quality.toy import Toy
from tests.quality.toy_records import toy_records
from tests.report.stored import unpacked


def answer_of(repeats: int = 3, **kwargs: object) -> Answer:
    return answer(analyse(*records.bench(repeats, **kwargs)))  # type: ignore[arg-type]


def told(found: Answer) -> str:
    return " ".join([found.lead, *map(str, found.points), *found.limits])


def test_the_lead_gives_capacity_with_its_budget_and_what_theory_said() -> None:
    # 40 blocks × 128 tokens × 23,040 B = 117,964,800 B = 112.5 MiB; fp8 halves the bytes.
    assert answer_of().lead == (
        "In the same 112.50 MiB of KV memory, fp8 holds 2.00× the KV tokens of fp16 "
        "(5,120 → 10,240 tokens, exactly as predicted)."
    )


def test_a_difference_is_told_with_its_interval_and_the_load_that_shows_most_comes_first() -> None:
    points = answer_of().points
    assert points[0].about == "kv-bound"
    text = points[0].text
    assert text.startswith(" (pool full): output throughput 1.2")
    assert "], better (" in text
    assert text.count("tok/s") == 1
    assert text.endswith("fp16 ran out of blocks and preempted.")


def test_a_point_is_short_and_tells_each_latency_once() -> None:
    for point in answer_of().points:
        assert len(str(point).split()) <= 45
        assert str(point).count("TTFT") <= 1
        assert str(point).count("TPOT") <= 1


def test_slower_tokens_are_told_with_how_many_more_run_at_once_and_what_whole_requests_take() -> (
    None
):
    # fp16's pool takes 7 requests of this load, fp8's all 12; E2EL's mean falls though TPOT rises.
    text = answer_of().points[0].text
    assert "worse (12 at once, not 7; whole requests 0.9" in text


def real(scenario: str, root: Path) -> Answer:
    run = unpacked(scenario, root)
    return answer(analyse(*store.read_bench(run), store.read_quality(run)))


@pytest.mark.parametrize(
    ("scenario", "words"),
    [
        # 10,240 tokens' bytes, of which the engine says 36,408: 8.89 requests × 4,096.
        ("sliding_window", "3.56× and window_1024 2.46× as many requests of 4,096 tokens as full"),
        # 5,120 tokens' bytes, 14,178 told: 6.15 requests × 2,304.
        ("token_eviction", "as many requests of 2,304 tokens as full"),
    ],
)
def test_where_layers_free_blocks_pools_are_compared_by_requests_not_by_tokens(
    tmp_path: Path, scenario: str, words: str
) -> None:
    found = told(real(scenario, tmp_path))
    assert words in found
    assert "KV tokens" not in found


def test_answers_of_several_variants_are_told_together_beside_the_baselines_own(
    tmp_path: Path,
) -> None:
    points = real("token_eviction", tmp_path).points
    (point,) = [point for point in points if point.about.startswith("Answers of")]
    assert point.about == "Answers of sinks_and_512, sinks_and_256 and snapkv_512"
    assert "; sinks_and_256 KL 0.1" in point.text
    assert ", needles 6 of 12, questions 0 of 2, same answer 1 of 5; " in point.text
    assert "(full itself: KL 0.000668, needles 10, questions 0, same answer 3)" in point.text


def test_answers_of_one_variant_are_told_with_needles_questions_and_the_same_answers(
    tmp_path: Path,
) -> None:
    found = told(real("fp8_vs_fp16", tmp_path))
    assert (
        "needles 14 → 15 of 18; questions 3 → 2 of 5; same answer 3 of 12, fp16 again 10" in found
    )
    assert "Different is not yet worse." in found


def test_where_both_pools_hold_the_same_the_load_leads(tmp_path: Path) -> None:
    found = real("prefix_sharing", tmp_path)
    assert found.lead.startswith("shared against not_shared, long prefix (1,000 of 1,025 prompt ")
    assert "output throughput" in found.lead
    assert found.points[-1].about == "KV pool"


def even_throughput(comparison: Comparison) -> Comparison:
    def even(row: Row) -> Row:
        cells = (replace(c, effect="no difference shown", improves=None) for c in row.cells)
        return replace(row, cells=tuple(cells))

    rows = (even(row) if row.metric == "output_throughput" else row for row in comparison.rows)
    return replace(comparison, rows=tuple(rows))


@pytest.mark.parametrize("order", [1, -1])
def test_where_throughput_shows_nothing_the_load_whose_latency_moves_comes_first(
    order: int,
) -> None:
    found = analyse(*records.bench())
    even = tuple(map(even_throughput, found.comparisons))[::order]
    points = answer(replace(found, comparisons=even)).points
    assert [point.about for point in points] == ["kv-bound", "exercise"]
    assert "throughput shows no difference" in points[0].text
    assert "TTFT p50 0.0" in points[0].text


def test_a_short_try_says_first_that_everything_ran(tmp_path: Path) -> None:
    lead = real("smoke", tmp_path).lead
    assert lead.startswith("It ran: 2 servers started and all 16 requests were answered. In the ")


def test_an_observation_tells_latencies_beside_throughput() -> None:
    text = answer_of(repeats=1).points[0].text
    assert "× in one repeat, without an interval (" in text
    assert "TPOT p50 1." in text


def test_no_difference_shown_is_told_as_a_result() -> None:
    point = answer_of().points[1]
    assert point.about == "exercise"
    assert "output throughput shows no difference" in point.text
    assert "output throughput 1." not in point.text


def test_a_single_repeat_is_an_observation_and_claims_nothing() -> None:
    found = answer_of(repeats=1)
    assert "× in one repeat, without an interval (" in told(found)
    assert "better" not in told(found)
    assert "worse" not in told(found)
    assert any("An interval needs 3 or more." in limit for limit in found.limits)


def test_an_invalid_figure_is_withheld_with_the_reason() -> None:
    bench, trials = records.bench()
    lost = records.with_lost_requests(trials, "fp8")
    found = answer(analyse(bench, lost))
    assert "output throughput is withheld: " in found.points[0].text
    assert "better" not in told(found)


def test_the_cpu_profile_is_said_and_the_cuda_profile_is_not_called_cpu() -> None:
    assert any(limit.startswith("CPU profile") for limit in answer_of().limits)
    on_gpu = answer_of(environment=records.GPU_MACHINE)
    assert not any("CPU profile" in limit for limit in on_gpu.limits)


def test_quality_is_said_to_be_unmeasured() -> None:
    assert any("quality was not measured" in limit for limit in answer_of().limits)


def test_a_run_in_which_nothing_was_measured_says_why() -> None:
    bench, trials = records.bench(1)
    nothing = [records.skipped(trial, "FP8 is not supported here") for trial in trials]
    found = answer(analyse(bench, nothing))
    assert found.lead == "Nothing was measured: FP8 is not supported here."
    assert found.points == ()


def test_one_variant_alone_is_compared_with_nothing() -> None:
    found = answer_of(variants=("fp16",))
    assert "nothing to compare it with" in found.lead
    assert found.points[0].text.endswith("tok/s of output.")


def test_several_variants_get_one_line_each() -> None:
    found = answer_of(variants=("fp16", "fp8", "fp8_e5m2"))
    # The records' server gives fp8 twice the blocks, and every other variant as many as fp16.
    assert found.lead == (
        "In the same 112.50 MiB of KV memory, fp8 holds 2.00× and fp8_e5m2 1.00× the KV tokens "
        "of fp16, exactly as predicted."
    )
    assert [point.about for point in found.points] == ["fp8", "fp8_e5m2"]
    assert found.points[0].text.startswith(": 10,240 KV tokens, 2.00× fp16's. ")


def test_more_variants_than_a_sentence_holds_are_counted() -> None:
    names = ("fp16", "a", "b", "c", "d", "e")
    found = answer_of(1, variants=names, workloads=(records.EXERCISE,))
    assert found.lead.startswith("5 variants were measured against fp16, in the same 112.50 MiB")
    assert "holds as many KV tokens as fp16 (5,120 tokens" in found.points[0].text


def test_trials_that_do_not_count_are_counted() -> None:
    bench, trials = records.bench()
    broken = [records.failed(trials[0], "out of memory"), *trials[1:-1]]
    limits = answer(analyse(replace(bench, skipped={"nvfp4": "needs a GPU"}), broken)).limits
    assert any("10 measured to the end, 1 failed, 1 not finished" in limit for limit in limits)
    assert "nvfp4 was skipped: needs a GPU." in limits


def test_a_pool_that_is_off_the_prediction_is_not_called_exact() -> None:
    bench, trials = records.bench()
    off = []
    for trial in trials:
        server = trial.run.server
        assert server is not None
        blocks = (server.granted.num_gpu_blocks or 0) - 4
        granted = replace(
            server.granted, num_gpu_blocks=blocks, kv_cache_tokens=blocks * records.BLOCK
        )
        off.append(replace(trial, run=replace(trial.run, server=replace(server, granted=granted))))
    # 76 of 80 predicted blocks are 5 % less.
    assert "5.0 % less than predicted" in answer(analyse(bench, off)).lead


def test_skipped_variants_are_no_points_and_share_a_sentence_per_reason() -> None:
    bench, trials = records.bench(1, variants=("fp16", "fp8", "fp4", "int4"))
    gone = [
        records.skipped(trial, "no") if trial.run.trial.variant in ("fp4", "int4") else trial
        for trial in trials
    ]
    bench = replace(bench, skipped={"fp4": "no such kernel", "int4": "no such kernel"})
    found = answer(analyse(bench, gone))
    assert "fp8 holds 2.00×" in found.lead
    assert not any("fp4" in str(point) or "int4" in str(point) for point in found.points)
    assert "fp4 and int4 were skipped: no such kernel." in found.limits


def test_reasons_that_differ_in_the_name_alone_are_told_once() -> None:
    bench, trials = records.bench(1, workloads=(records.EXERCISE,))
    reasons = {name: f"the engine does not take '{name}'" for name in ("nvfp4", "int8", "int4")}
    limits = answer(analyse(replace(bench, skipped=reasons), trials)).limits
    assert (
        "nvfp4 was skipped: the engine does not take 'nvfp4'. So were, likewise, int8 and int4."
        in (limits)
    )


def failing(**reasons: tuple[str, ...]) -> Analysis:
    """A run of these variants, the text of which fails the gate for these reasons."""
    made = analyse(*records.bench(1, variants=("fp16", "fp8", "d", *reasons)), toy_records(Toy()))
    quality = made.quality
    assert quality is not None
    (fp8,) = [one for one in quality.variants if one.kind == "variant"]
    broken = tuple(
        replace(fp8, variant=name, standing="broken", gate=SanityGate(False, why, None, None))
        for name, why in reasons.items()
    )
    return replace(made, quality=replace(quality, variants=(fp8, *broken)))


def broken_text(found: Answer) -> str:
    """What is said of the variants whose text is broken, though others lead."""
    point = found.points[0]
    assert point.about == "Fails the text gate"
    return point.text


def test_where_several_variants_are_sound_their_findings_lead_and_broken_text_comes_second() -> (
    None
):
    found = answer(failing(a=("empty", "twice"), b=("empty",), c=("needles lost", "x", "y")))
    # The records' server gives fp8 twice the blocks, and every other variant as many as fp16.
    assert found.lead == (
        "In the same 112.50 MiB of KV memory, fp8 holds 2.00× and d 1.00× the KV tokens of fp16, "
        "exactly as predicted."
    )
    assert not found.withdrawn
    # 6 reasons, of which the first of each variant is told: 3 are left.
    assert broken_text(found) == (
        ": the gains of a, b and c don't count, because the text fails the sanity gate. "
        "a and b: empty; c: needles lost (and 3 more below)."
    )
    abouts = [point.about for point in found.points]
    assert abouts[:3] == ["Fails the text gate", "fp8", "d"]
    assert not {"a", "b", "c"} & set(abouts)


def test_where_one_variant_alone_is_sound_the_broken_ones_come_first() -> None:
    made = failing(a=("empty",))
    (d,) = [kv for kv in made.kv if kv.variant == "d"]
    found = answer(replace(made, kv=tuple(kv for kv in made.kv if kv is not d)))
    assert found.lead.startswith("The gains of a don't count")
    assert found.withdrawn
    (held,) = [point for point in found.points if point.about == "Capacity and speed"]
    assert held.text.startswith(" (of no use with such text): ")


def test_one_broken_variant_is_told_with_two_reasons_and_many_with_four_of_them() -> None:
    assert broken_text(answer(failing(a=("r1", "r2", "r3")))) == (
        ": the gains of a don't count, because the text fails the sanity gate: r1; r2 (and 1 "
        "more below)."
    )
    many = broken_text(answer(failing(**{name: (f"not {name}",) for name in "abcgh"})))
    assert many.startswith(": the gains of a, b, c, g and h don't count")
    assert many.endswith("a: not a; b: not b; c: not c; g: not g (and 1 more below).")
    both = broken_text(answer(failing(a=("r",), b=("r",))))
    assert both.endswith("sanity gate. a and b: r.")


def test_loads_of_one_name_are_told_apart_by_what_differs() -> None:
    loads = tuple(
        {**records.EXERCISE, "name": "x", "concurrency": n, "num_prompts": 4} for n in (2, 4)
    )
    abouts = [point.about for point in answer_of(1, workloads=loads).points]
    assert abouts == ["x, 2 at once", "x, 4 at once"]
    longer = ({**loads[0], "context_tokens": 256}, loads[0])
    abouts = [point.about for point in answer_of(1, workloads=longer).points]
    assert set(abouts) == {"x, 256+16 tokens", "x, 512+16 tokens"}
