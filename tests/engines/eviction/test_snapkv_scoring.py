"""Which keys stay, worked by hand and held against SnapKV's rule written out in loops."""

from __future__ import annotations

import math

import pytest
import torch

from harness.engines.eviction.snapkv.scoring import chosen_positions, observed_scores


def looped_scores(queries: torch.Tensor, keys: torch.Tensor, scale: float) -> torch.Tensor:
    """The rule query by query, key by key, in fp64."""
    observe, heads, _ = queries.shape
    tokens, kv_heads, _ = keys.shape
    before, shared = tokens - observe, heads // kv_heads
    found = torch.zeros(kv_heads, before, dtype=torch.float64)
    for head in range(heads):
        drawn = [0.0] * before
        for index in range(observe):
            seen = range(before + index + 1)
            logits = [float(queries[index, head] @ keys[k, head // shared]) * scale for k in seen]
            total = sum(math.exp(logit) for logit in logits)
            for place in range(before):
                drawn[place] += math.exp(logits[place]) / total / observe
        for place in range(before):
            near = sum(drawn[max(place - 2, 0) : place + 3]) / 5
            found[head // shared, place] += near / shared
    return found


@pytest.mark.parametrize(("tokens", "observe", "heads", "kv_heads"), [(30, 4, 4, 2), (17, 8, 3, 3)])
def test_scores_are_those_of_the_rule_written_out(
    tokens: int, observe: int, heads: int, kv_heads: int
) -> None:
    torch.manual_seed(tokens)
    queries, keys = torch.randn(observe, heads, 8), torch.randn(tokens, kv_heads, 8)
    own = observed_scores(queries, keys, 0.5)
    assert torch.allclose(own.double(), looped_scores(queries, keys, 0.5), atol=1e-6)


def test_a_key_that_draws_all_attention_keeps_its_neighbours_too() -> None:
    """One query of 100 on key 5 of 12: its weight is 1, smoothed to 1/5 on keys 3 to 7.

    Of 8 whole-block tokens 6 stay: 3 to 7, and one of those that draw nothing.
    """
    keys = torch.zeros(12, 1, 2)
    keys[5, 0, 0] = 1.0
    queries = torch.tensor([[[100.0, 0.0]]])
    assert observed_scores(queries, keys, 1.0)[0].tolist() == pytest.approx(
        [0, 0, 0, 0.2, 0.2, 0.2, 0.2, 0.2, 0, 0, 0], abs=1e-6
    )
    assert {3, 4, 5, 6, 7} <= set(chosen_positions(queries, keys, 1.0, 6, 8)[0].tolist())


@pytest.mark.parametrize("tail", [0, 3, 16, 40])
def test_the_observing_tokens_stay_and_the_tail_is_left_alone(tail: int) -> None:
    """16 tokens observe; of those in whole blocks all stay, the others lie in the tail anyhow."""
    torch.manual_seed(tail)
    whole, kept, observe = 160, 64, 16
    queries, keys = torch.randn(observe, 4, 8), torch.randn(whole + tail, 2, 8)
    positions = chosen_positions(queries, keys, 0.3, kept, whole)
    assert positions.shape == (2, kept)
    scores = observed_scores(queries, keys, 0.3)
    first_observing = whole + tail - observe
    for head, own in enumerate(positions.tolist()):
        assert own == sorted(set(own))
        assert own[-1] < whole
        assert set(range(first_observing, whole)) <= set(own)
        chosen = [place for place in own if place < first_observing]
        gone = [place for place in range(min(first_observing, whole)) if place not in own]
        assert scores[head, chosen].min() >= scores[head, gone].max()


def test_each_kv_head_chooses_for_itself() -> None:
    """Head 0 looks at key 4, head 1 at key 20."""
    keys = torch.zeros(40, 2, 2)
    keys[4, 0, 0] = keys[20, 1, 0] = 1.0
    queries = torch.zeros(2, 2, 2)
    queries[..., 0] = 50.0
    first, second = chosen_positions(queries, keys, 1.0, 8, 32).tolist()
    assert set(range(2, 7)) <= set(first)
    assert set(range(18, 23)) <= set(second)
