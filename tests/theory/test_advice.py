from __future__ import annotations

from dataclasses import replace

import pytest

from harness.errors import InputError
from harness.specs.gpu import gpu_spec
from harness.specs.model import model_spec, shipped_config
from harness.theory.advice import Advice, Case, Option, advise
from harness.theory.settings import EngineSettings

LLAMA = model_spec(shipped_config("meta-llama/Llama-3.1-8B-Instruct") or {}, name="llama")
SETTINGS = EngineSettings(device="cuda", max_num_batched_tokens=2048)
A100 = gpu_spec("a100-80gb")


def weigh(case: Case, **changes: object) -> Advice:
    return advise(LLAMA, replace(SETTINGS, **changes), A100, case)  # type: ignore[arg-type]


def option(advice: Advice, beginning: str) -> Option:
    return next(found for found in advice.options if found.strategy.startswith(beginning))


def test_what_fits_is_counted_in_whole_blocks_of_the_pool() -> None:
    advice = weigh(Case(32_768, 64))
    plain = option(advice, "paging")
    # 16 tokens × 131,072 B a block; a request of 32,768 tokens takes 2,048 blocks.
    blocks = advice.budget.kv_bytes // (16 * 131_072)
    assert plain.concurrency == pytest.approx((blocks - 1) / 2048)
    assert plain.fits is False


def test_fp8_holds_twice_as_many_and_decodes_no_slower() -> None:
    advice = weigh(Case(32_768, 64))
    fp8 = option(advice, "FP8")
    assert fp8.capacity_ratio == pytest.approx(2.0, rel=1e-3)
    assert fp8.memory_ratio == pytest.approx(2.0, rel=1e-3)
    assert fp8.throughput_ratio is not None
    assert fp8.throughput_ratio > 1.0
    assert fp8.ttft_ratio is not None


def test_the_least_effort_that_holds_everything_is_recommended() -> None:
    # Plain paging holds about 14 requests of 32K on this card, FP8 twice as many.
    assert weigh(Case(32_768, 10)).recommended == "paging, model's own dtype"
    assert weigh(Case(32_768, 20)).recommended == "FP8 KV cache"
    assert weigh(Case(32_768, 40)).recommended == "INT4 KV cache, scales per token and head"
    # Two cards hold 32 in the model's own dtype; FP8 on top of that is the least for 64.
    assert weigh(Case(32_768, 64)).recommended == "2 GPUs, FP8 KV cache"
    assert weigh(Case(32_768, 500)).recommended is None


def test_more_cards_and_joined_strategies_are_weighed_only_where_no_flag_is_enough() -> None:
    assert not [o for o in weigh(Case(32_768, 40)).options if o.effort == "more GPUs"]
    advice = weigh(Case(32_768, 64))
    two, fp8 = option(advice, "2 GPUs, model's own"), option(advice, "2 GPUs, FP8")
    # On each of two cards half of a request lies, and half of the weights.
    assert (two.gpus, two.memory_ratio, two.fits) == (2, pytest.approx(2.0, rel=1e-3), False)
    assert two.concurrency is not None
    assert fp8.concurrency == pytest.approx(2 * two.concurrency, rel=1e-3)
    assert fp8.change == "--tensor-parallel-size 2 --kv-cache-dtype fp8"
    # Two cards are enough, so four are not told.
    assert not any(found.gpus > 2 for found in advice.options)
    joined, alone = option(advice, "FP8 and sliding"), option(advice, "sliding")
    assert joined.concurrency is not None
    assert joined.concurrency == pytest.approx(2 * (alone.concurrency or 0), rel=1e-2)
    assert "These fit too: FP8 and sliding window of 4,096" in advice.why


def test_a_window_is_charged_with_two_steps_as_the_pinned_engine_charges_it() -> None:
    case = Case(32_768, 64)
    blocks = weigh(case).budget.kv_bytes // (16 * 131_072)
    # ⌈(4,095 + 2 × 2,048) / 16⌉ + 1 = 513 blocks a request: 57 fit, not 64.
    ahead = option(weigh(case), "sliding")
    assert ahead.concurrency == pytest.approx((blocks - 1) / 513)
    assert ahead.fits is False
    # Engines before 0.26, or --no-async-scheduling: ⌈(4,095 + 2,048) / 16⌉ + 1 = 385, 76 fit.
    one = option(weigh(case, async_scheduling=False), "sliding")
    assert one.concurrency == pytest.approx((blocks - 1) / 385)
    assert one.fits is True
    assert weigh(case, async_scheduling=False).recommended == "2 GPUs, FP8 KV cache"


def test_a_model_whose_heads_no_more_cards_can_share_is_not_put_on_them() -> None:
    config = {
        **(shipped_config("meta-llama/Llama-3.1-8B-Instruct") or {}),
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "hidden_size": 768,
    }
    advice = advise(model_spec(config, name="six heads"), SETTINGS, A100, Case(32_768, 5_000))
    # Six heads can be split by two, not by four.
    assert {found.gpus for found in advice.options} == {1, 2}


def test_where_nothing_fits_it_says_what_comes_nearest_and_what_adds_room() -> None:
    why = weigh(Case(32_768, 500)).why
    assert "fit under none of these; 8 GPUs, FP8 KV cache comes nearest" in why
    assert "twice the GPUs" in why


def test_weights_that_exceed_the_card_are_told_and_not_divided_by() -> None:
    big = model_spec(
        {**(shipped_config("meta-llama/Llama-3.1-8B-Instruct") or {}), "num_hidden_layers": 400},
        name="big",
    )
    advice = advise(big, SETTINGS, A100, Case(8192, 4))
    # 400 layers of 436,224,000 B are 163 GiB: two cards of 80 GB may not use that much, four may.
    assert advice.recommended == "4 GPUs, model's own dtype"
    assert "alone exceed what the engine may use of one card" in advice.why
    plain = option(advice, "paging")
    assert (plain.concurrency, plain.throughput_tokens_per_s, plain.capacity_ratio) == (
        0.0,
        None,
        None,
    )


def test_a_shared_prefix_is_held_once_and_spares_its_prefill() -> None:
    advice = weigh(Case(2048, 600, shared_prefix_tokens=1000))
    plain, shared = option(advice, "paging"), option(advice, "sharing")
    # 1,000 tokens are 62 whole blocks of 16; a request of 2,048 takes 128, of its own 66.
    blocks = advice.budget.kv_bytes // (16 * 131_072)
    assert plain.concurrency == pytest.approx((blocks - 1) / 128)
    assert shared.concurrency == pytest.approx((blocks - 1 - 62) / 66)
    assert shared.ttft_ratio is not None
    assert shared.ttft_ratio < 0.7


def test_reservations_hold_whole_lengths_however_short_the_request() -> None:
    advice = weigh(Case(2048, 64), max_model_len=32_768)
    blocks = advice.budget.kv_bytes // (16 * 131_072)
    assert option(advice, "whole-length").concurrency == (blocks - 1) // 2048


def test_offloading_has_no_figure_and_says_why() -> None:
    offload = option(weigh(Case(32_768, 64)), "CPU offloading")
    assert offload.concurrency is None
    assert "must fit the pool all the same" in (offload.reason or "")


@pytest.mark.parametrize(
    ("case", "told"),
    [
        (Case(256, 1, output_tokens=256), "room for a prompt"),
        (Case(2048, 1, shared_prefix_tokens=1792), "part of its own"),
        (Case(1 << 20, 1), "is made for 131,072 tokens"),
        (Case(2048, 0), "at least one request"),
    ],
)
def test_a_case_that_can_not_be_is_refused(case: Case, told: str) -> None:
    with pytest.raises(InputError, match=told):
        weigh(case)
