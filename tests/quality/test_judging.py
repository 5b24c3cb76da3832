"""The judge is judged first; what it says counts only then. Numbers worked by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from harness.analysis.judging import judge_outcome, preferred
from harness.analysis.quality_results import JudgeOutcome
from harness.record import (
    Judgement,
    JudgeRecord,
    JudgeRun,
    PassRecord,
    QualityAnswer,
    QualityPass,
    QualityPrompt,
    QualityRecords,
)
from harness.report.quality_text import judge_sentences

HEAD = JudgeRun(1, "j", "judge-model", "http://j/v1", is_self=False, margin=0.1, status="sealed")


def said(pair: str, kind: str, ab: str | None, ba: str | None) -> list[Judgement]:
    variant = "fp8" if kind == "real" else None
    return [
        Judgement(pair, kind, variant, 0, order, verdict, prompt_tokens=10, output_tokens=2)  # type: ignore[arg-type]
        for order, verdict in (("ab", ab), ("ba", ba))
    ]


def controls(right: int, of: int = 5) -> list[Judgement]:
    lines: list[Judgement] = []
    for n in range(of):
        good = n < right
        lines += said(f"i{n}", "identical", "tie" if good else "A", "tie")
        # The better answer is shown first in `ab`: A, then B.
        lines += said(f"d{n}", "degraded", "A", "B" if good else "tie")
        lines += said(f"k{n}", "known", "A", "B" if good else "tie")
    return lines


def records(same: int = 0) -> QualityRecords:
    def answers(text: str) -> tuple[QualityAnswer, ...]:
        return tuple(QualityAnswer(n, "same" if n < same else f"{text} {n}") for n in range(20))

    def head(kind: str, variant: str) -> QualityPass:
        return QualityPass(1, kind, kind, variant, "sealed", (0,), 1, reverse=False)  # type: ignore[arg-type]

    return QualityRecords(
        prompts=tuple(QualityPrompt(n, "answer", "s", (1,), "i", "p") for n in range(20)),
        passes=(
            PassRecord(head("reference", "fp16"), answers("base")),
            PassRecord(head("variant", "fp8"), answers("mine")),
        ),
    )


def outcome(lines: list[Judgement], same: int = 0) -> JudgeOutcome:
    return judge_outcome(JudgeRecord(HEAD, tuple(lines)), records(same))


@pytest.mark.parametrize(
    ("order", "verdict", "expected"),
    [
        ("ab", "A", "one"),
        ("ab", "B", "other"),
        ("ba", "A", "other"),
        ("ba", "B", "one"),
        ("ba", "tie", "tie"),
        ("ab", None, None),
    ],
)
def test_a_verdict_is_for_an_answer_not_for_a_place(
    order: str, verdict: str | None, expected: str | None
) -> None:
    one = Judgement("p", "real", "fp8", 0, order, verdict)  # type: ignore[arg-type]
    assert preferred(one) == expected


def test_wins_ties_and_losses_need_both_orders() -> None:
    lines = controls(5)
    lines += said("r0", "real", "B", "A")  # the variant, both times
    lines += said("r1", "real", "A", "B")  # the baseline, both times
    lines += said("r2", "real", "A", "B")
    lines += said("r3", "real", "A", "tie")  # once only: a tie
    lines += said("r4", "real", "tie", "tie")
    lines += said("r5", "real", "A", None)  # no verdict in one order
    found = outcome(lines, same=4)
    assert found.reliable
    (fp8,) = found.variants
    # 5 judged and 4 word for word the same.
    assert (fp8.pairs, fp8.identical, fp8.unusable) == (9, 4, 1)
    assert (fp8.wins, fp8.ties, fp8.losses) == (1, 6, 2)
    assert fp8.net.value == pytest.approx(-1 / 9)
    assert fp8.non_inferior is False
    assert found.prompt_tokens == 10 * len(lines)
    # r5, shown the second time.
    assert found.lost == 1


def test_a_question_whose_tokens_are_unknown_leaves_their_sum_unknown() -> None:
    """15 controls' 30 questions of 10 + 2 tokens, one of which told nothing of its prompt."""
    lines = controls(5)
    assert outcome(lines).prompt_tokens == 300
    silent = outcome([replace(lines[0], prompt_tokens=None), *lines[1:]])
    assert (silent.prompt_tokens, silent.output_tokens) == (None, 60)


@pytest.mark.parametrize("right", [4, 5])
def test_four_of_five_controls_are_enough(right: int) -> None:
    assert outcome(controls(right)).reliable


def test_a_judge_that_fails_a_kind_of_control_is_not_reliable_and_withheld() -> None:
    found = outcome([*controls(3), *said("r0", "real", "B", "A")])
    assert not found.reliable
    assert any("3 of 5" in why for why in found.unreliable_because)
    (fp8,) = found.variants
    assert (fp8.wins, fp8.ties, fp8.losses, fp8.net, fp8.non_inferior) == (None,) * 5
    assert [(c.kind, c.right, c.asked) for c in found.controls] == [
        ("identical", 3, 5),
        ("degraded", 3, 5),
        ("known", 3, 5),
    ]


def test_a_judge_that_follows_the_position_is_exposed_even_with_good_controls() -> None:
    biased = [line for n in range(10) for line in said(f"r{n}", "real", "A", "A")]
    found = outcome([*controls(5), *biased])
    # 10 of the 25 pairs.
    assert found.position_bias.value == pytest.approx(0.4)
    assert not found.reliable
    assert "40 % of the pairs" in found.unreliable_because[0]


def test_what_a_judge_cost_is_told_in_numbers_that_agree() -> None:
    found = outcome([*controls(5)])
    one = replace(found, questions=1, lost=1, malformed=1)
    (*_, cost) = judge_sentences(one)
    assert cost.startswith("It was asked 1 question for ")
    assert cost.endswith("; 1 reply was malformed; 1 question ended without a verdict.")
    (*_, cost) = judge_sentences(replace(found, questions=2, lost=0, malformed=2))
    assert cost.startswith("It was asked 2 questions for ")
    assert cost.endswith("; 2 replies were malformed.")


def test_too_few_controls_prove_nothing() -> None:
    found = outcome(controls(2, of=2))
    assert not found.reliable
    assert "only 2" in found.unreliable_because[0]


def test_a_verdict_that_was_asked_for_again_counts_once() -> None:
    lost = [replace(j, verdict=None, error="lost") for j in said("r0", "real", "A", "B")]
    found = outcome([*controls(5), *lost, *said("r0", "real", "A", "B")])
    assert found.variants[0].losses == 1
    assert found.variants[0].pairs == 1
