"""An error tells what, where, what is legal and the next move; its kind decides the exit code."""

from __future__ import annotations

from harness import errors


def test_a_message_holds_everything_it_was_given() -> None:
    error = errors.ScenarioError(
        "the baseline 'c' is no variant",
        where="demo.yaml:5 (baseline)",
        legal=["a", "b"],
        evidence="line one\nline two",
        next_move="did you mean 'b'?",
    )
    assert str(error).splitlines() == [
        "demo.yaml:5 (baseline): the baseline 'c' is no variant",
        "  legal: a, b",
        "  evidence:",
        "    line one",
        "    line two",
        "  next: did you mean 'b'?",
    ]


def test_bad_input_is_exit_2_and_all_else_exit_1() -> None:
    for kind in (errors.ScenarioError, errors.UnsupportedModel, errors.NotFound):
        assert kind("x").exit_code == 2
    for kind in (errors.ServerDied, errors.StoreError, errors.NothingMeasured):
        assert kind("x").exit_code == 1
    assert errors.ServerStartError("x", kind="memory").exit_code == 1


def test_suggestions_are_made_only_for_what_is_near() -> None:
    assert errors.did_you_mean("repeat", ["repeats", "seed"]) == "did you mean 'repeats'?"
    assert errors.did_you_mean("zzz", ["repeats", "seed"]) is None


def test_a_stored_reason_is_what_happened_with_its_evidence_if_there_is_any() -> None:
    assert errors.KvbenchError("it ended", where="a.log").told == "it ended"
    assert errors.KvbenchError("it ended", where="a.log", evidence="out of memory").told == (
        "it ended: out of memory"
    )


def test_only_if_nothing_came_through_is_a_load_failed() -> None:
    assert errors.every_one_failed("request", ["refused", "reset"], 2) == (
        "every request failed; the first said: refused"
    )
    assert errors.every_one_failed("request", ["refused"], 2) is None
    assert errors.every_one_failed("request", [], 0) is None
