"""The section of each strategy: which runs get it, what its sentences say, that it is drawn."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.analysis.compare import analyse
from harness.record import EngineSample, ProcessSample, RequestRecord, TrialRecord
from harness.report.build import build_report
from harness.report.claims import CLAIMS, claims
from harness.report.section import sections
from harness.report.section_parts import Section
from harness.scenario import load_scenario
from tests.analysis.strategy_build import analysed, record, request, scrapes
from tests.records import bench as whole_bench
from tests.report.stored import store_run
from tests.report.test_html import Page

ROOT = Path(__file__).resolve().parents[2]
MIX = {"context_median": 100, "output_median": None, "sigma": 1.0}


def only(*records: TrialRecord, anchor: str | None = None, **scenario: Any) -> Section:
    """The one section of these records, or the one of this anchor."""
    bench, analysis = analysed(*records, **scenario)
    made = sections(bench, records, analysis)
    (found,) = [each for each in made if anchor in (None, each.anchor)]
    return found


def growing(context: int, blocks: int) -> TrialRecord:
    return record(
        requests=(request(0, context, 8),),
        samples=scrapes((1.0, 0.0, 0.0), (2.0, blocks / 40, 1.0), (3.0, 0.0, 0.0)),
        context_tokens=context,
        output_tokens=8,
        concurrency=1,
    )


def test_growth_tells_the_measured_rate_beside_the_formula() -> None:
    found = only(growing(120, 1), growing(376, 3), growing(632, 5))
    assert found.anchor == "growth"
    assert "grows by 23,040 bytes per token of context (23,040 predicted)" in found.lead
    assert "within one block per request" in found.lead
    assert found.opens


@pytest.mark.parametrize(
    ("moved_bytes", "told"),
    # 19 of 1,019 bytes are 1.9 %, 25 of 1,025 are 2.4 %: flat is what moves by 2 % at most.
    [(19, "while device memory stays flat"), (25, "device memory beside it"), (None, "beside it")],
)
def test_the_title_of_growth_calls_flat_what_the_cautions_call_flat(
    moved_bytes: int | None, told: str
) -> None:
    trials = [growing(120, 1), growing(376, 3), growing(632, 5)]
    if moved_bytes is not None:
        seen = (ProcessSample(1.0, 1000, 1), ProcessSample(2.0, 1000 + moved_bytes, 1))
        trials = [replace(trial, process_samples=seen) for trial in trials]
    (chart,) = only(*trials).charts
    assert chart.title.endswith(told)


def decoding(variant: str, dtype: str, slope_s: float) -> list[TrialRecord]:
    def one(context: int) -> TrialRecord:
        itl = 0.010 + slope_s * context
        requests = tuple(request(i, context, 9, itl=itl + i * 1e-5) for i in range(3))
        return record(
            variant,
            requests=requests,
            baseline=dtype == "auto",
            flags={"kv_cache_dtype": dtype},
            context_tokens=context,
            output_tokens=9,
        )

    return [one(context) for context in (256, 512, 1024)]


@pytest.mark.parametrize(
    ("slope_s", "words"),
    [(3e-6, "never on this device"), (1e-6, "at every context measured")],
)
def test_dtypes_tell_where_decoding_becomes_faster(slope_s: float, words: str) -> None:
    found = only(*decoding("fp16", "auto", 2e-6), *decoding("fp8", "fp8", slope_s))
    assert found.anchor == "kv-dtypes"
    assert "TPOT p50 at" not in found.lead
    assert f"fp8: {words}" in found.lead
    assert any(words in row[-1] for row in found.grids[1].rows)


def test_repeated_launches_are_told_as_the_unit_of_the_intervals() -> None:
    def launched(made: TrialRecord, repeat: int) -> TrialRecord:
        facts = replace(
            made.run.trial, repeat=repeat, trial_id=f"{made.run.trial.trial_id}-{repeat}"
        )
        # Launches of one variant lie 0.1 ms apart.
        shifted = tuple(
            request(r.index, r.prompt_tokens_planned, 9, itl=gap + repeat * 1e-4)
            for r in made.requests
            for gap in [r.chunk_times_s[1] - r.chunk_times_s[0]]
        )
        return replace(made, run=replace(made.run, trial=facts), requests=shifted)

    lines = [*decoding("fp16", "auto", 2e-6), *decoding("fp8", "fp8", 3e-6)]
    found = only(*(launched(made, repeat) for made in lines for repeat in range(3)))
    # Two variants of three launches: 2 · (3 − 1) degrees of freedom.
    assert "how far launches of one variant lie apart" in found.measured[0]
    assert "4 degrees of freedom" in found.measured[0]
    assert [row[3:5] for row in found.grids[1].rows] == [("3", "27"), ("3", "27")]
    assert "fp8: never on this device" in found.lead


def test_dtypes_without_a_sweep_over_context_tell_what_they_hold() -> None:
    bench, trials = whole_bench(1)
    analysis = analyse(bench, trials)
    found = {each.anchor: each for each in sections(bench, trials, analysis)}["kv-dtypes"]
    assert found.claims == ("C11",)
    assert found.lead == "In the same bytes the pool holds, against fp16: fp8 2.00×."
    assert [row[3] for row in found.grids[0].rows] == ["5,120", "10,240"]
    assert not found.opens


def headed(variant: str, heads: int) -> TrialRecord:
    made = record(
        variant,
        requests=(request(0, 100, 8),),
        baseline=heads == 9,
        flags={"hf_overrides": {"num_key_value_heads": heads}},
    )
    config = {**(made.run.trial.model_config or {}), "num_key_value_heads": heads}
    return replace(made, run=replace(made.run, trial=replace(made.run.trial, model_config=config)))


def test_heads_give_the_capacity_that_their_number_says() -> None:
    found = only(headed("mha", 9), headed("mqa", 1))
    assert found.anchor == "attention-heads"
    rates = {row[0]: row[2] for row in found.grids[0].rows}
    # 2 × 30 layers × 9 heads × 64 × 2 bytes, and a ninth of it
    assert rates == {"mha": "69,120", "mqa": "7,680"}
    assert [row[5] for row in found.grids[0].rows] == ["1.00×", "9.00×"]
    assert "not applicable" in found.not_covered


def mixed(variant: str, stamp: str) -> TrialRecord:
    requests = (request(0, 200, 80), request(1, 200, 80))
    flat = scrapes((1.0, 6 / 40, 2.0), (8.85, 6 / 40, 2.0))
    return record(
        variant,
        requests=requests,
        samples=flat,
        stamp=stamp,
        baseline=stamp == "emulated",
        length_mix=MIX,
    )


def test_reservations_open_the_page_with_their_waste_and_are_stamped() -> None:
    found = only(mixed("whole", "emulated"), mixed("paged", "measured"))
    assert found.anchor == "reservations"
    # 480 tokens stored of 4,096 reserved, or of 768 in blocks
    assert "would leave 88.3 %" in found.lead
    assert "pages 37.5 %" in found.lead
    assert "leave 97.3 % of their reservations empty" in found.theory
    assert [row[1] for row in found.grids[0].rows] == ["emulated", "measured"]


def sharing(variant: str, *, caching: bool, blocks: int, hits: float) -> TrialRecord:
    samples = (
        EngineSample(0.0, kv_cache_usage=0.0, prefix_cache_hits_total=0.0),
        EngineSample(5.0, kv_cache_usage=blocks / 499, prefix_cache_hits_total=0.0),
        EngineSample(10.0, kv_cache_usage=0.0, prefix_cache_hits_total=hits),
    )
    return record(
        variant,
        requests=(request(0, 1025, 64),),
        samples=samples,
        blocks=500,
        caching=caching,
        baseline=not caching,
        context_tokens=1025,
        output_tokens=64,
        num_prompts=40,
        concurrency=40,
        warmup_requests=1,
        shared_prefix_tokens=1000,
    )


def test_a_shared_prefix_is_told_in_blocks_and_not_exact_where_it_is_not() -> None:
    apart = sharing("apart", caching=False, blocks=360, hits=0.0)
    once = sharing("once", caching=True, blocks=87, hits=35840.0)
    found = only(apart, once)
    assert "with 1,000 of their 1,025 prompt tokens in common hold 87 blocks instead of 360" in (
        found.lead
    )
    assert found.opens
    assert "every figure is as predicted" in found.lead
    assert "7 + 40 × (9 − 7) = 87 blocks instead of 360" in found.theory
    off = only(apart, sharing("once", caching=True, blocks=88, hits=35840.0))
    assert "not every figure is as predicted" in off.lead


def small(made: TrialRecord, dtype: str = "auto") -> TrialRecord:
    """The same with a pool of 64 blocks, of which 63 can be used."""
    server = made.run.server
    assert server is not None
    granted = replace(server.granted, num_gpu_blocks=64, kv_cache_tokens=64 * 128)
    trial = replace(
        made.run.trial, server_flags={**made.run.trial.server_flags, "kv_cache_dtype": dtype}
    )
    return replace(
        made, run=replace(made.run, trial=trial, server=replace(server, granted=granted))
    )


def test_requests_that_did_not_fit_without_sharing_are_counted_by_theory_all_the_same() -> None:
    # 63 // 9 = 7 requests fit apart, in 63 blocks; shared (63 − 7) // (9 − 7) = 28 of the 40,
    # in 7 + 28 · 2 = 63: each on its own, those 28 would hold 28 · 9 = 252.
    apart = small(sharing("apart", caching=False, blocks=360, hits=0.0))
    once = small(sharing("once", caching=True, blocks=360, hits=35840.0))
    found = only(apart, once)
    assert "28 requests" in found.lead
    assert "instead of 252 by theory (apart's pool took 7 at once, in " in found.lead
    # A variant that differs in its dtype as well is no partner, and sharing not the question.
    other = small(sharing("fp8", caching=False, blocks=360, hits=0.0), "fp8")
    mixed_run = only(other, apart, once, anchor="prefix-sharing")
    assert "apart's pool took" in mixed_run.lead
    assert not mixed_run.opens
    unpaired = only(other, once, anchor="prefix-sharing")
    assert "instead of 252 by theory, and" in unpaired.lead


def returning(variant: str, waits: tuple[float, float]) -> TrialRecord:
    def one(turn: int) -> RequestRecord:
        made = request(turn, 500 * (turn + 1), 2, first=waits[turn])
        return replace(made, cached_prompt_tokens=384 * turn)

    return record(variant, requests=(one(0), one(1)), turns=2, context_tokens=1000)


def test_returning_turns_say_what_was_skipped_and_what_a_link_must_carry() -> None:
    bench, analysis = analysed(made := returning("gpu_only", (0.5, 0.9)))
    analysis = replace(analysis, skipped={"offload": "no GPU"})
    (found,) = sections(bench, [made], analysis)
    assert found.lead.startswith("offload was skipped.")
    assert "waits 900.0 ms" in found.lead
    # 1,000 tokens/s × 23,040 B
    assert "= 23.0 MB/s" in found.theory


def test_fetched_turns_tell_what_the_host_link_carried_and_whether_it_paid() -> None:
    off = returning("gpu_only", (0.5, 0.9))
    on = returning("offload", (0.5, 0.7))
    flags = {**on.run.trial.server_flags, "kv_offloading_size": 1}
    facts = replace(on.run.trial, server_flags=flags, is_baseline=False)
    fetched = (EngineSample(9.0, external_cache_hits_total=384.0),)
    on = replace(on, run=replace(on.run, trial=facts), engine_samples=fetched)
    found = only(off, on)
    assert "offload answers after 700.0 ms (p50), gpu_only after 900.0 ms" in found.lead
    assert "fetched 384 tokens from host memory" in found.lead
    # 1,000 tokens/s: 616 tokens are computed in 0.616 s, and 384 · 23,040 B fetched in 84 ms.
    assert "a host link of 105.3 MB/s; fetching pays above 23.0 MB/s" in found.measured[1]
    assert found.measured[1].endswith("so fetching beats computing.")


def level(concurrency: int, running: float) -> TrialRecord:
    samples = (
        EngineSample(0.0, requests_running=0.0, preemptions_total=0.0),
        EngineSample(5.0, requests_running=running, preemptions_total=0.0),
        EngineSample(10.0, requests_running=0.0, preemptions_total=0.0),
    )
    return record(
        requests=(request(0, 500, 12),),
        samples=samples,
        context_tokens=500,
        output_tokens=12,
        concurrency=concurrency,
    )


def test_the_cliff_names_the_predicted_and_the_measured_step() -> None:
    found = only(level(8, 8), level(10, 10), level(11, 10))
    assert "500 prompt tokens, 10 fit the pool by theory" in found.lead
    assert "too small from 11 at once on" in found.lead
    assert "the right step for 1 of 1" in found.lead
    assert [row[1] for row in found.grids[0].rows] == ["large enough", "large enough", "too small"]


def test_cited_claims_choose_the_sections() -> None:
    sweep = (level(8, 8), level(10, 10), level(11, 10))
    bench, analysis = analysed(*sweep, claims=["C11"])
    assert sections(bench, sweep, analysis) == ()
    bench, analysis = analysed(*sweep, claims=["C4"])
    assert [found.anchor for found in sections(bench, sweep, analysis)] == ["capacity-cliff"]


def test_the_claims_carry_their_errata_and_an_unknown_one_is_left_out() -> None:
    assert set(CLAIMS) == {f"C{number}" for number in range(1, 16)}
    assert [claim.number for claim in claims(["C3", "C99", "C8"])] == ["C3", "C8"]
    assert {n for n, claim in CLAIMS.items() if claim.erratum} == {"C3", "C4", "C10", "C11"}


@pytest.mark.parametrize(
    ("scenario", "trials"),
    [
        ("memory_growth", [growing(120, 1), growing(376, 3), growing(632, 5)]),
        ("kv_dtypes", [*decoding("fp16", "auto", 2e-6), *decoding("fp8", "fp8", 3e-6)]),
        ("attention_heads", [headed("mha", 9), headed("mqa", 1)]),
        ("paged_vs_preallocated", [mixed("whole", "emulated"), mixed("paged", "measured")]),
        ("cpu_offload", [returning("gpu_only", (0.5, 0.9))]),
        ("capacity_cliff", [level(8, 8), level(10, 10), level(11, 10)]),
    ],
)
def test_every_claim_that_a_scenario_cites_is_told_with_theory_and_measurement(
    scenario: str, trials: list[TrialRecord]
) -> None:
    cited = load_scenario(ROOT / "scenarios" / f"{scenario}.yaml", "cpu").claims
    bench, analysis = analysed(*trials, claims=list(cited))
    # C15 is told by the section about all strategies.
    own = [each for each in sections(bench, trials, analysis) if each.claims != ("C15",)]
    told = {number for each in own for number in each.claims}
    assert set(cited) - {"C15"} <= told
    assert all(each.theory and each.measured and each.lead for each in own)


@pytest.mark.parametrize(
    "trials",
    [
        [growing(120, 1), growing(376, 3), growing(632, 5)],
        [*decoding("fp16", "auto", 2e-6), *decoding("fp8", "fp8", 3e-6)],
        [mixed("whole", "emulated"), mixed("paged", "measured")],
        [
            sharing("apart", caching=False, blocks=360, hits=0.0),
            sharing("once", caching=True, blocks=87, hits=35840.0),
        ],
        [returning("gpu_only", (0.5, 0.9))],
        [level(8, 8), level(10, 10), level(11, 10)],
    ],
    ids=["growth", "dtypes", "waste", "prefix", "offload", "cliff"],
)
def test_a_page_with_a_section_is_whole(tmp_path: Path, trials: list[TrialRecord]) -> None:
    bench, analysis = analysed(*trials)
    run = store_run(bench, trials, tmp_path / "results")
    paths = build_report(run, reports_root=tmp_path / "reports")
    page = Page(paths.html)
    (found,) = sections(bench, trials, analysis)
    text = " ".join(page.text.split())
    assert " ".join(found.lead.split()) in text
    assert all(f"Claim {number}" in text for number in found.claims)
    assert all(chart.name in {path.stem for path in paths.pngs} for chart in found.charts)
    ids = page.values("id")
    assert len(ids) == len(set(ids))
    assert {a["href"] for a in page.all("a")} >= {f"#{found.anchor}"}
    assert not re.search(r"\bnan\b|\binf\b|None", found.lead + found.theory)


def test_a_sweep_tells_what_its_longest_context_shows_and_from_where_on() -> None:
    def launched(made: TrialRecord, repeat: int) -> TrialRecord:
        facts = replace(
            made.run.trial, repeat=repeat, trial_id=f"{made.run.trial.trial_id}-{repeat}"
        )
        return replace(made, run=replace(made.run, trial=facts))

    lines = [*decoding("fp16", "auto", 2e-5), *decoding("fp8", "fp8", 1e-5)]
    found = only(*(launched(made, repeat) for made in lines for repeat in range(3)))
    # At 1,024 tokens 10 + 10.24 ms against 10 + 20.48 ms: 20.24 / 30.48 = 0.66.
    assert "TPOT p50 at 1,024 tokens: fp8 0.66× (load by load faster from 256 on). " in found.lead
