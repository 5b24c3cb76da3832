"""Divergence, agreement, perplexity and common prefixes, worked by hand."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.analysis.agreement import (
    Place,
    agreement,
    buckets,
    by_prompt,
    common_prefix,
    divergence,
    excess,
    free_running,
    paired,
    trend,
)
from harness.record import QualityAnswer, QualityScore

LN = math.log


def test_equal_lists_do_not_diverge() -> None:
    listed = {1: LN(0.6), 2: LN(0.3)}
    assert divergence(listed, dict(listed), k=2) == 0


def test_two_whole_lists_give_the_textbook_divergence() -> None:
    # 0.5 ln(0.5/0.25) + 0.5 ln(0.5/0.75) = 0.5 · 0.6931 − 0.5 · 0.4055 = 0.1438
    p, q = {1: LN(0.5), 2: LN(0.5)}, {1: LN(0.25), 2: LN(0.75)}
    assert divergence(p, q, k=2) == pytest.approx(0.1438, abs=1e-4)


def test_the_tail_is_one_cell() -> None:
    # Listed: 0.5 against 0.4; the rest 0.5 against 0.6.
    # 0.5 ln(0.5/0.4) + 0.5 ln(0.5/0.6) = 0.11157 − 0.09116 = 0.02041
    assert divergence({1: LN(0.5)}, {1: LN(0.4)}, k=1) == pytest.approx(0.02041, abs=1e-5)


def test_lists_without_a_common_token_diverge_by_what_the_other_can_hide_at_most() -> None:
    # The baseline's token (0.9) can have at most 0.1 with the other, whose tail is 0.1 in all.
    # At the best x = 0.1, y = 0.1: 0.9 ln(0.9/0.1) + 0.1 ln(0.1/0.9) = 1.97750 − 0.21972
    found = divergence({1: LN(0.9)}, {2: LN(0.9)}, k=1)
    assert found == pytest.approx(1.75778, abs=1e-4)


weights = st.lists(st.floats(1e-6, 1.0), min_size=12, max_size=12)


def _top(dist: list[float], k: int, also: int) -> dict[int, float]:
    order = sorted(range(len(dist)), key=lambda token: -dist[token])[:k]
    return {token: LN(dist[token]) for token in dict.fromkeys([*order, also])}


@given(weights, weights, st.integers(1, 12), st.integers(0, 11))
def test_it_never_exceeds_the_true_divergence(
    one: list[float], other: list[float], k: int, target: int
) -> None:
    p, q = ([w / sum(side) for w in side] for side in (one, other))
    true = sum(a * LN(a / b) for a, b in zip(p, q, strict=True))
    found = divergence(_top(p, k, target), _top(q, k, target), k)
    assert 0 <= found <= true + 1e-6


def place(prompt: int, position: int, kl: float, **more: object) -> Place:
    facts = {"in_answer": False, "baseline_logprob": -1.0, "logprob": -1.0, "same_top": True}
    return Place(prompt=prompt, position=position, kl=kl, **{**facts, **more})  # type: ignore[arg-type]


def test_figures_are_pooled_over_positions() -> None:
    places = [
        place(0, 1, 0.1, logprob=-2.0),
        place(0, 2, 0.3, same_top=False, logprob=-4.0),
        place(1, 1, 0.5),
        place(1, 2, 0.7),
    ]
    found = agreement(places)
    assert found is not None
    assert (found.prompts, found.positions) == (2, 4)
    assert found.top1_agreement == 0.75
    assert found.kl.value == pytest.approx(0.4)
    assert found.baseline_perplexity == pytest.approx(math.e)
    # mean of 2, 4, 1, 1 is 2
    assert found.perplexity == pytest.approx(math.exp(2))
    assert found.perplexity_ratio == pytest.approx(math.e)
    # Two prompts give no interval, four positions no 99th percentile.
    assert found.kl.low is None
    assert found.kl_p99 is None
    assert agreement([]) is None


def test_an_interval_is_over_prompts_and_the_same_at_every_read() -> None:
    places = [place(prompt, 1, 0.1 * prompt) for prompt in range(6)]
    first, second = agreement(places), agreement(places)
    assert first is not None
    assert first == second
    assert first.kl.low is not None
    assert first.kl.high is not None
    assert 0 <= first.kl.low < 0.25 < first.kl.high <= 0.5


def test_an_excess_over_the_floor_is_paired_by_prompt() -> None:
    mine = by_prompt([place(p, 1, 0.2 + p) for p in range(6)])
    floor = by_prompt([place(p, 1, 0.1 + p) for p in range(6)])
    found = excess(mine, floor)
    assert found is not None
    # The prompts differ widely, the pairs do not: 0.1 everywhere.
    assert (found.value, found.low, found.high) == pytest.approx((0.1, 0.1, 0.1))
    assert excess(mine, {}) is None


def test_buckets_cover_the_context_evenly() -> None:
    found = buckets([place(0, p, float(p >= 8)) for p in range(1, 16)], count=4)
    assert [(b.start, b.end, b.positions) for b in found] == [
        (0, 4, 3),
        (4, 8, 4),
        (8, 12, 4),
        (12, 16, 4),
    ]
    assert [b.kl_mean for b in found] == [0, 0, 1, 1]


@pytest.mark.parametrize(
    ("late", "expected"), [(0.9, "grows"), (0.1, "falls"), (0.5, "no trend shown")]
)
def test_a_trend_holds_the_second_half_against_the_first(late: float, expected: str) -> None:
    places = [place(p, 3, 0.5) for p in range(6)] + [place(p, 10, late) for p in range(6)]
    # The first stretch, positions up to 10 / 8, is wild as well, in the other direction or not.
    places += [place(p, 1, wild) for p in range(6) for wild in (0.0, 90.0)]
    # A wild answer at the end does not count.
    places += [place(p, 11, 50.0, in_answer=True) for p in range(6)]
    assert trend(places) == expected


def test_a_first_mark_that_sticks_out_makes_no_trend() -> None:
    # As the shipped example's: 0.03 nats at the beginning, 0.01 from there on.
    places = [place(p, at, 0.03 if at < 10 else 0.01) for p in range(6) for at in range(1, 81)]
    assert trend(places) == "no trend shown"


def test_no_trend_is_known_from_few_prompts() -> None:
    assert trend([place(0, 1, 0.1), place(0, 9, 0.9)]) == "unknown"
    assert trend([]) == "unknown"


def score(index: int, tops: list[int], **more: object) -> QualityScore:
    count = len(tops)
    facts = {
        "prompt_length": 2,
        "positions": tuple(range(1, count + 1)),
        "logprobs": (-1.0,) * count,
        "ranks": (1,) * count,
        "top_ids": tuple((top, 99) for top in tops),
        "top_logprobs": ((-0.1, -3.0),) * count,
    }
    return QualityScore(index=index, **{**facts, **more})  # type: ignore[arg-type]


def test_only_what_both_scored_is_paired() -> None:
    base = [score(0, [5, 6, 7]), score(1, [5])]
    mine = [score(0, [5, 8]), score(1, [], error="lost"), score(2, [5])]
    found = paired(base, mine)
    assert [(p.prompt, p.position, p.in_answer, p.same_top) for p in found] == [
        (0, 1, False, True),
        (0, 2, True, False),
    ]


def test_answers_are_compared_until_they_part() -> None:
    base = [QualityAnswer(0, token_ids=(1, 2, 3, 4)), QualityAnswer(1, token_ids=(7, 8))]
    mine = [QualityAnswer(0, token_ids=(1, 2, 9)), QualityAnswer(1, token_ids=(7, 8))]
    found = free_running(base, mine)
    assert found is not None
    assert (found.prompts, found.exact_matches) == (2, 1)
    # 2 of 4 tokens, and all of 2.
    assert found.common_prefix_mean == 2.0
    assert found.common_prefix_fraction == 0.75
    assert free_running(base, [QualityAnswer(0, error="lost")]) is None


def test_a_common_prefix_ends_with_the_shorter_text() -> None:
    assert common_prefix((1, 2), (1, 2, 3)) == 2
    assert common_prefix((), (1,)) == 0
