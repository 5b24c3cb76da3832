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
    assert weigh(Case(32_768, 70)).recommended == "sliding window of 4,096"
    assert weigh(Case(32_768, 500)).recommended is None


def test_where_nothing_fits_it_says_what_comes_nearest_and_what_adds_room() -> None:
    why = weigh(Case(32_768, 500)).why
    assert "fit under none of these; sliding window of 4,096 comes nearest" in why
    assert "twice the GPUs" in why


def test_weights_that_exceed_the_card_are_told_and_not_divided_by() -> None:
    big = model_spec(
        {**(shipped_config("meta-llama/Llama-3.1-8B-Instruct") or {}), "num_hidden_layers": 400},
        name="big",
    )
    advice = advise(big, SETTINGS, A100, Case(8192, 4))
    assert advice.recommended is None
    assert "alone exceed the card" in advice.why
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
