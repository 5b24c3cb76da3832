from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from harness.theory.recompute import kv_computations, redundant_kv_computations


def test_the_chapters_example_counted_step_by_step() -> None:
    # Steps see 1000, 1001, … 1499 tokens: 500 × 1000 + (0 + 1 + … + 499) = 500,000 + 124,750.
    assert kv_computations(1000, 500, cached=False) == 624_750
    # The prompt once, and 499 single tokens: the last token's own are never needed.
    assert kv_computations(1000, 500, cached=True) == 1_499
    assert redundant_kv_computations(1000, 500) == 623_251


def test_the_first_token_costs_the_same_with_and_without_a_cache() -> None:
    assert redundant_kv_computations(1000, 1) == 0
    assert kv_computations(7, 0, cached=False) == 0 == kv_computations(7, 0, cached=True)


@given(st.integers(1, 200), st.integers(1, 200))
def test_the_closed_form_is_the_sum_over_the_steps(prompt: int, output: int) -> None:
    assert kv_computations(prompt, output, cached=False) == sum(
        prompt + step for step in range(output)
    )
