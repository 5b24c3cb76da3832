"""The sanity gate: broken text is told from weak text, and a scale warning is quoted."""

from __future__ import annotations

import pytest

from harness.analysis.quality_results import Agreement, Range, Retrieval
from harness.analysis.sanity import OTHER_TOKENS, gate, is_collapsed, is_empty, scale_warning
from harness.engines import server_log
from harness.record import QualityAnswer, QualityScore

GOOD = [QualityAnswer(n, f"A sentence about matter {n}.", tuple(range(20))) for n in range(10)]
EMPTY = QualityAnswer(0, " \n")
LOOP = QualityAnswer(0, "and so on " * 20, (1, 2, 3) * 20)


def agreement(ratio: float = 1.0, top1: float = 0.9) -> Agreement:
    return Agreement(10, 500, 12.0 * ratio, 12.0, top1, Range(0.1), None)


def needles(right: int, asked: int = 12) -> Retrieval:
    return Retrieval((), asked, right, 0, 0)


def test_healthy_text_passes() -> None:
    found = gate(GOOD, GOOD, agreement(), agreement(), (needles(12), needles(12)))
    assert found.passed
    assert found.reasons == ()
    assert (found.empty_share, found.collapsed_share) == (0, 0)


def test_text_as_weak_as_the_baselines_is_not_blamed() -> None:
    weak = [LOOP] * 5 + GOOD[:5]
    assert gate(weak, weak).passed


@pytest.mark.parametrize(("bad", "fragment"), [(EMPTY, "are empty"), (LOOP, "repetition")])
def test_more_broken_answers_than_the_baseline_has_fail(bad: QualityAnswer, fragment: str) -> None:
    # 3 of 10 is beyond 0 + 20 %; 2 of 10 is not.
    found = gate([bad] * 3 + GOOD[:7], GOOD)
    assert not found.passed
    assert "30 %" in found.reasons[0]
    assert fragment in found.reasons[0]
    assert gate([bad] * 2 + GOOD[:8], GOOD).passed


def test_a_perplexity_blow_up_fails_with_both_figures() -> None:
    assert gate(GOOD, GOOD, agreement(1.49)).passed
    found = gate(GOOD, GOOD, agreement(2.0))
    assert "2.00×" in found.reasons[0]
    assert "12.0 → 24.0" in found.reasons[0]


def test_a_server_that_hardly_ever_agrees_fails() -> None:
    assert not gate(GOOD, GOOD, None, agreement(top1=0.4)).passed


def test_lost_needles_fail_only_where_the_baseline_finds_them() -> None:
    assert not gate(GOOD, GOOD, found=(needles(3), needles(12))).passed
    assert gate(GOOD, GOOD, found=(needles(4), needles(12))).passed
    # The baseline finds 5 of 12: losing them says little.
    assert gate(GOOD, GOOD, found=(needles(0), needles(5))).passed
    assert gate(GOOD, GOOD, found=(needles(0, 4), needles(4, 4))).passed


def test_an_uncalibrated_scale_fails_the_gate_and_is_quoted() -> None:
    line = "Using KV cache scaling factor 1.0 for fp8_e4m3. If this is unintended, verify …"
    found = gate(GOOD, GOOD, log_warnings=("WARNING something else", line))
    assert not found.passed
    assert found.scale_warning == line
    assert line in found.reasons[0]
    assert scale_warning(("scales were calibrated",)) is None


def test_garbled_text_is_collapsed_whatever_its_length() -> None:
    assert is_collapsed(QualityAnswer(0, "a\ufffd\ufffd b"))
    assert not is_collapsed(QualityAnswer(0, "Ein Töpfchen, 漢字\n"))


def test_short_repetition_is_no_collapse_and_words_stand_in_for_tokens() -> None:
    assert not is_collapsed(QualityAnswer(0, "no no no", (1, 1, 1)))
    assert is_collapsed(QualityAnswer(0, "over and " * 30))


def test_empty_is_empty_whatever_white_space() -> None:
    assert is_empty(EMPTY)
    assert not is_empty(QualityAnswer(0, "."))
    assert is_empty(QualityAnswer(0))


#: As vLLM 0.32.0 writes them (``layers/quantization/kv_cache.py``), prefix and all.
_PREFIX = "(EngineCore pid=7) WARNING 11-29 12:00:00 [kv_cache.py:163] "
ENGINE_LINES = (
    (
        "Using KV cache scaling factor 1.0 for fp8_e4m3. If this is unintended, verify that "
        "k/v_scale scaling factors are properly set in the checkpoint."
    ),
    (
        "Using uncalibrated q_scale 1.0 and/or prob_scale 1.0 with fp8 attention. This may cause "
        "accuracy issues. Please make sure q/prob scaling factors are available in the fp8 "
        "checkpoint."
    ),
)


@pytest.mark.parametrize("line", ENGINE_LINES)
def test_what_the_engine_says_of_its_scales_comes_through_its_log_whole(line: str) -> None:
    kept = server_log.warnings(f"INFO all is well\n{_PREFIX}{line}\n")
    assert kept == (line,)
    assert gate(GOOD, GOOD, log_warnings=kept).scale_warning == line


@pytest.mark.parametrize(
    "line",
    [
        "rope scale 11.0 may cause longer contexts to be cut",
        "scaling out to 1.05 replicas is experimental",
        "falling back to a slower kernel",
    ],
)
def test_other_warnings_are_not_taken_for_scales(line: str) -> None:
    assert scale_warning((line,)) is None


def test_a_server_that_reads_other_tokens_than_it_was_sent_fails() -> None:
    misread = QualityScore(0, 4, error=f"unexpected reply: ValueError('{OTHER_TOKENS}')")
    good = QualityScore(1, 4)
    assert gate(GOOD, GOOD, scores=[misread, good]).reasons == (
        "it read other tokens than it was sent in 1 of 2 prompts",
    )
    # Lost in transit is another matter, and so is what went well the second time.
    assert gate(GOOD, GOOD, scores=[QualityScore(0, 4, error="timed out")]).passed
    assert gate(GOOD, GOOD, scores=[misread, QualityScore(0, 4)]).passed
