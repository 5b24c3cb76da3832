from __future__ import annotations

from dataclasses import replace

from harness.analysis.compare import analyse
from harness.analysis.quality_results import Gate
from harness.analysis.results import Analysis
from harness.report.sentence import Answer, answer
from tests import records
from tests.quality.toy import Toy
from tests.quality.toy_records import toy_records


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
    lost = [
        replace(
            trial,
            requests=tuple(replace(r, error="reset", finished_s=None) for r in trial.requests),
        )
        if trial.run.trial.variant == "fp8"
        else trial
        for trial in trials
    ]
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
        replace(fp8, variant=name, standing="broken", gate=Gate(False, why, None, None))
        for name, why in reasons.items()
    )
    return replace(made, quality=replace(quality, variants=(fp8, *broken)))


def broken_text(found: Answer) -> str:
    """What is said of the variants whose text is broken, though others lead."""
    point = found.points[0]
    assert point.about == "Broken text"
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
        ": the headline of a, b and c is invalid, because the text fails the sanity gate. "
        "a and b: empty; c: needles lost (and 3 more below)."
    )
    abouts = [point.about for point in found.points]
    assert abouts[:3] == ["Broken text", "fp8", "d"]
    assert not {"a", "b", "c"} & set(abouts)


def test_where_one_variant_alone_is_sound_the_broken_ones_come_first() -> None:
    made = failing(a=("empty",))
    (d,) = [kv for kv in made.kv if kv.variant == "d"]
    found = answer(replace(made, kv=tuple(kv for kv in made.kv if kv is not d)))
    assert found.lead.startswith("The headline of a is invalid")
    assert found.withdrawn
    (held,) = [point for point in found.points if point.about == "Capacity and speed"]
    assert held.text.startswith(" (the gains of a don't count): ")


def test_one_broken_variant_is_told_with_two_reasons_and_many_with_four_of_them() -> None:
    assert broken_text(answer(failing(a=("r1", "r2", "r3")))) == (
        ": the headline of a is invalid, because the text fails the sanity gate: r1; r2 (and 1 "
        "more below)."
    )
    many = broken_text(answer(failing(**{name: (f"not {name}",) for name in "abcgh"})))
    assert many.startswith(": the headline of a, b, c, g and h is invalid")
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
