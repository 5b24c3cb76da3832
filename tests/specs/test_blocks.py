from __future__ import annotations

from typing import Any

import pytest

from harness.errors import ModelConfigError
from harness.specs.blocks import FeedForward, feed_forward, is_sparse
from harness.specs.fields import Fields


def of(**config: Any) -> Fields:
    return Fields({"model_type": "llama", "hidden_size": 64, **config}, "small")


def test_a_gated_block_has_three_matrices_and_an_ungated_one_two() -> None:
    assert feed_forward(of(intermediate_size=256), 0, "") == FeedForward((256,), 3)
    assert feed_forward(of(model_type="starcoder2", intermediate_size=256), 0, "") == FeedForward(
        (256,), 2
    )


def test_an_ungated_block_without_a_width_is_four_times_as_wide() -> None:
    assert feed_forward(of(model_type="gpt2"), 0, "") == FeedForward((256,), 2)


def test_a_gated_block_without_a_width_is_an_error() -> None:
    with pytest.raises(ModelConfigError, match="intermediate_size"):
        feed_forward(of(), 0, "")


def test_experts_with_a_shared_one_beside_them() -> None:
    config = of(
        num_experts=8,
        num_experts_per_tok=2,
        moe_intermediate_size=32,
        shared_expert_intermediate_size=48,
    )
    assert feed_forward(config, 0, "") == FeedForward((48,), 3, 8, 2, 32)


def test_shared_experts_are_as_wide_as_their_number_says() -> None:
    config = of(
        n_routed_experts=8,
        num_experts_per_tok=2,
        moe_intermediate_size=32,
        n_shared_experts=2,
        first_k_dense_replace=1,
        intermediate_size=256,
    )
    assert feed_forward(config, 0, "") == FeedForward((256,), 3)
    assert feed_forward(config, 1, "") == FeedForward((64,), 3, 8, 2, 32)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"num_local_experts": 8}, [True, True, True, True]),
        ({"num_experts": 8, "decoder_sparse_step": 2}, [False, True, False, True]),
        ({"num_experts": 8, "mlp_only_layers": [1]}, [True, False, True, True]),
        (
            {"num_experts": 8, "expert_layer_period": 2, "expert_layer_offset": 1},
            [False, True, False, True],
        ),
        ({"num_local_experts": 8, "interleave_moe_layer_step": 2}, [False, True, False, True]),
        ({}, [False, False, False, False]),
    ],
)
def test_sparse_layers_stand_where_the_config_says(
    config: dict[str, Any], expected: list[bool]
) -> None:
    assert [is_sparse(of(**config), i) for i in range(4)] == expected


def test_letters_decide_where_layers_are_spelled() -> None:
    config = of(
        model_type="nemotron_h",
        intermediate_size=256,
        n_routed_experts=8,
        num_experts_per_tok=2,
        moe_intermediate_size=32,
    )
    assert feed_forward(config, 0, "M") is None
    assert feed_forward(config, 1, "-") == FeedForward((256,), 2)
    assert feed_forward(config, 2, "E") == FeedForward((), 2, 8, 2, 32)


def test_a_width_that_is_cut_to_two_thirds_and_rounded() -> None:
    # 2/3 of 12,288 is 8,192, a multiple of 256.
    config = of(block_ff_dim=12288, block_auto_adjust_ff_dim=True, block_multiple_of=256)
    assert feed_forward(config, 0, "") == FeedForward((8192,), 3)
