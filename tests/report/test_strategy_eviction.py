"""The section on eviction: what it says of a planted run, and what it leaves out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from harness.analysis import eviction
from harness.analysis.compare import analyse
from harness.analysis.eviction import EvictionResult, PolicyResult
from harness.report import strategy_eviction, style
from harness.report.section_parts import Section
from harness.specs.eviction import SnapKvRule
from tests.analysis.test_eviction import planted
from tests.records import bench


def policy(press: str, ratio: float, **changes: Any) -> PolicyResult:
    kept = round(1536 * (1 - ratio))
    made = PolicyResult(
        variant=f"kvpress_{press}_{ratio:g}",
        press=press,
        ratio=ratio,
        status="sealed",
        reason=None,
        engine_version="kvpress 0.5.5 on transformers 5.2.0",
        prefill_tokens=1536,
        kept_tokens=float(kept),
        predicted_tokens=kept,
        cache_bytes=kept * 23_040.0,
        predicted_bytes=kept * 23_040,
        perplexity=12.0 + 3 * ratio,
        perplexity_ratio=1.0 + ratio / 4,
    )
    return replace(made, **changes)


def priced(records: Any, analysis: Any) -> tuple[EvictionResult, ...]:
    """The planted variants with perplexities, and decode figures in place of the planted gauge."""
    found = eviction.eviction_results(analysis.trials, records, None)
    return tuple(
        replace(each, perplexity=12.0 * ratio, perplexity_ratio=ratio, measured_decoding=blocks)
        for each, ratio, blocks in zip(found, (1.0, 1.25), (8.0, 4.0), strict=True)
    )


def shown(
    monkeypatch: pytest.MonkeyPatch,
    found: tuple[EvictionResult, ...],
    policies: tuple[PolicyResult, ...] = (),
    **changes: Any,
) -> Section:
    analysis, records = planted(8 / 79)
    monkeypatch.setattr(strategy_eviction, "eviction_results", lambda *_given: found)
    monkeypatch.setattr(strategy_eviction, "policy_results", lambda *_given: policies)
    section = strategy_eviction.section(bench(repeats=1)[0], records, replace(analysis, **changes))
    assert section is not None
    return section


def test_blocks_are_told_beside_their_prediction() -> None:
    analysis, records = planted(8 / 79)
    record, _ = bench(repeats=1)
    section = strategy_eviction.section(record, records, analysis)
    assert section is not None
    assert "fp8 holds at most 4 blocks (bound 5)" in section.lead.replace("4.0", "4")
    memory, pool, price = section.grids
    assert [row[:2] for row in memory.rows] == [
        ("fp16", "everything stays"),
        ("fp8", "sinks=4,window=256"),
    ]
    assert memory.rows[1][2].startswith("5 blocks, ")
    assert len({len(row) for row in (memory.head, *memory.rows)}) == 1
    for grid in (pool, price):
        assert len({len(row) for row in (grid.head, *grid.rows)}) == 1
    assert [chart.name for chart in section.charts] == ["strategy-eviction"]


def test_with_perplexity_measured_the_trade_off_is_drawn_against_full_attention(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    analysis, records = planted(8 / 79)
    section = shown(monkeypatch, priced(records, analysis))
    assert "at 1.25× full attention's perplexity of the tails" in section.lead
    chart = section.charts[0]
    assert chart.name == "strategy-eviction-trade-off"
    assert "Hollow" not in chart.caption
    with style.drawing():
        figure = chart.draw()
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels == ["full attention, vLLM", "fp8"]


def test_policies_of_kvpress_are_hollow_marks_and_said_to_be_another_engines(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two ratios are one trail; the policy that compresses nothing is a line, no mark."""
    analysis, records = planted(8 / 79)
    policies = (policy("none", 0.0), policy("snapkv", 0.833), policy("snapkv", 0.667))
    section = shown(monkeypatch, priced(records, analysis), policies)
    chart = section.charts[0]
    assert "another engine" in chart.caption
    with style.drawing():
        figure = chart.draw()
    drawn = {line.get_label(): line for line in figure.axes[0].lines}
    trail = drawn["kvpress snapkv (transformers)"]
    assert trail.get_markerfacecolor() == "none"
    assert list(trail.get_xdata()) == [511 * 23_040.0, 257 * 23_040.0]
    assert "full attention, transformers" in drawn
    assert drawn["fp8"].get_markerfacecolor() != "none"
    kvpress = section.grids[3]
    assert kvpress.rows[0][:2] == ("kvpress_none_0", "0")
    assert "another engine's (kvpress 0.5.5 on transformers 5.2.0)" in " ".join(section.measured)
    assert not any("tok/s" in cell for row in kvpress.rows for cell in row)


def test_snapkv_is_held_against_kvpress_where_both_kept_as_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    analysis, records = planted(8 / 79)
    full, cut = priced(records, analysis)
    cut = replace(cut, rule=SnapKvRule(512))
    policies = (policy("snapkv", 0.667), policy("snapkv", 0.833))
    told = " ".join(shown(monkeypatch, (full, cut), policies).measured)
    assert "vLLM cut to 512 tokens gives a perplexity of 15.00" in told
    assert "kvpress at 511 tokens (ratio 0.667) 14.00" in told


def test_a_cut_prompts_own_perplexity_is_withheld_with_the_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    analysis, records = planted(8 / 79)
    full, cut = priced(records, analysis)
    cut = replace(cut, rule=SnapKvRule(512), perplexity=None, perplexity_ratio=None)
    section = shown(monkeypatch, (full, cut))
    assert "The perplexity of fp8 is withheld" in " ".join(section.measured)
    assert section.grids[2].rows[1][3:5] == ("—", "—")
    assert "4.0 while decoding" in section.lead


def test_what_was_skipped_or_failed_is_said_once_per_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    analysis, records = planted(8 / 79)
    unknown: dict[str, Any] = {
        "kept_tokens": None,
        "cache_bytes": None,
        "perplexity": None,
        "perplexity_ratio": None,
    }
    skipped = policy("snapkv", 0.667, status="skipped", reason="no environment", **unknown)
    failed = policy("knorm", 0.5, status="failed", reason="it died", **unknown)
    section = shown(
        monkeypatch,
        priced(records, analysis),
        (skipped, failed),
        skipped={skipped.variant: "no environment", "other": "no environment"},
    )
    told = [line for line in section.measured if line.startswith("Not measured")]
    assert told == [
        "Not measured: kvpress_snapkv_0.667 and other (no environment).",
        "Not measured: kvpress_knorm_0.5 (failed: it died).",
    ]
    assert [row[-1] for row in section.grids[3].rows] == ["skipped", "failed"]
    assert section.grids[3].rows[0][3] == "—"
    assert "Hollow" not in section.charts[0].caption


def test_a_run_without_eviction_gets_no_section() -> None:
    record, trials = bench(repeats=1)
    assert strategy_eviction.section(record, trials, analyse(record, trials)) is None
