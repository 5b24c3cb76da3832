"""The rule as people write it into a server's environment."""

from __future__ import annotations

import pytest

from harness.errors import InputError
from harness.specs.eviction import VARIABLE, EvictionRule, SnapKvRule, parse_rule, rule_from_env


def test_a_rule_names_sinks_and_window_in_any_order() -> None:
    assert parse_rule("sinks=32,window=512") == EvictionRule(sinks=32, window=512)
    assert parse_rule(" window=512 , sinks = 0 ") == EvictionRule(sinks=0, window=512)


def test_a_rule_is_written_back_as_it_is_read() -> None:
    for rule in (EvictionRule(sinks=4, window=1024), SnapKvRule(512, 32), SnapKvRule(512)):
        assert parse_rule(str(rule)) == rule


def test_a_budget_alone_is_observed_by_the_last_64_tokens() -> None:
    assert parse_rule("snapkv=512") == SnapKvRule(budget=512, observe=64)
    assert parse_rule(" observe = 16, snapkv=96 ") == SnapKvRule(budget=96, observe=16)


def test_an_unset_or_empty_variable_asks_for_nothing() -> None:
    assert rule_from_env({}) is None
    assert rule_from_env({VARIABLE: "  "}) is None
    assert rule_from_env({VARIABLE: "sinks=1,window=2"}) == EvictionRule(1, 2)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("sinks=32", "lacks window"),
        ("window=512", "lacks sinks"),
        ("sinks=32,window=0", "window=0 is no count from 1"),
        ("sinks=-1,window=512", "sinks=-1 is no count from 0"),
        ("sinks=32,window=many", "window=many is no count"),
        ("sinks=32,window=512,window=256", "window is given twice"),
        ("sink=32,window=512", "did you mean 'sinks'"),
        ("512", "'512' is no part"),
        ("sinks=1²,window=5", "sinks=1² is no count"),
        ("observe=64", "lacks snapkv"),
        ("snapkv=512,window=64", "mixes two rules: window too"),
        ("snapkv=64", "snapkv=64 must be more than the 64 tokens that observe"),
        ("snapkv=512,observe=0", "observe=0 is no count from 1"),
        ("snapvk=512", "did you mean 'snapkv'"),
        ("snapkv=100000001", "snapkv=100000001 is no count from 1 to 100,000,000 tokens"),
        # More digits than Python reads as one number.
        pytest.param("sinks=0,window=" + "9" * 5000, "window=999", id="5000 digits"),
    ],
)
def test_what_is_no_rule_is_refused_with_the_legal_form(text: str, said: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_rule(text)
    assert said in caught.value.what
    assert caught.value.where == VARIABLE
    assert caught.value.legal == (
        "sinks=<tokens>",
        "window=<tokens>",
        "snapkv=<tokens>",
        "observe=<tokens>",
    )


def test_a_refusal_stays_short_and_does_not_suggest_what_was_written() -> None:
    for text in ("snapkv", "sinks=1," + "x" * 5000, "window=" + "9" * 5000):
        with pytest.raises(InputError) as caught:
            parse_rule(text)
        assert "did you mean" not in caught.value.what
        assert len(caught.value.what) < 250
