from __future__ import annotations

from dataclasses import replace

import pytest

from harness.errors import InputError
from harness.specs.gpu import gpu_spec
from harness.specs.model import model_spec, shipped_config
from harness.theory.advice import Advice, Case, Option, advise
from harness.theory.settings import EngineSettings
from harness.units import GIB

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
    # Two cards hold 32 in the model's own dtype; FP8 on top of that is the least for 40 and 64.
    assert weigh(Case(32_768, 40)).recommended == "2 GPUs, FP8 KV cache"
    assert weigh(Case(32_768, 64)).recommended == "2 GPUs, FP8 KV cache"
    assert weigh(Case(32_768, 500)).recommended is None


def test_int4_is_told_but_never_recommended_unmeasured() -> None:
    advice = weigh(Case(32_768, 40))
    # It holds 53.8 on the one card, where FP8 holds 28.6.
    assert option(advice, "INT4").fits is True
    assert "Of the flags only INT4 KV cache, scales per token and head (53.8)" in advice.why
    # 14 fit on a card: three servers of one card take fewer than four cards for one server.
    assert "Lossless: 3 servers as they are (3 GPUs in all, 14 requests on each)" in advice.why
    assert "with FP8: 2 GPUs, FP8 KV cache (64.2)" in advice.why


def test_the_best_without_loss_stands_beside_what_is_recommended() -> None:
    advice = weigh(Case(32_768, 20))
    assert advice.recommended == "FP8 KV cache"
    assert "Lossless: 2 GPUs, model's own dtype (32.1); with FP8: FP8 KV cache (28.6)" in advice.why
    assert "INT4" not in advice.why


def test_what_engine_or_plugin_refuse_for_a_latent_cache_has_a_reason_and_no_figure() -> None:
    model = model_spec(shipped_config("deepseek-ai/DeepSeek-V2-Lite") or {}, name="latent")
    advice = advise(model, SETTINGS, A100, Case(16_384, 2000))
    refused = {o.strategy.split(",")[0]: o for o in advice.options if o.reason is not None}
    assert set(refused) == {
        "INT4 KV cache",
        "sliding window of 4",
        "token eviction",
        "CPU offloading",
    }
    assert all(o.concurrency is None and o.fits is None for o in refused.values())
    assert "no MLA backend" in (refused["INT4 KV cache"].reason or "")
    assert "MLA" in (refused["token eviction"].reason or "")


def test_a_bound_does_not_jump_where_one_more_request_fits() -> None:
    # Plain paging holds 1.9 requests of 8,192 tokens here, FP8 3.8: rounded down 1 and 3.
    card = replace(A100, memory_bytes=int(19.95 * GIB))
    advice = advise(LLAMA, SETTINGS, card, Case(8192, 64))
    plain, fp8 = option(advice, "paging"), option(advice, "FP8")
    assert plain.concurrency == pytest.approx(1.9, abs=0.1)
    # A step reads mostly weights, so twice the requests put out almost twice the tokens.
    assert fp8.capacity_ratio == pytest.approx(2.0, rel=0.01)
    assert fp8.throughput_ratio == pytest.approx(2.0, rel=0.05)


def test_mxfp4_weights_are_a_stated_estimate() -> None:
    model = model_spec(shipped_config("openai/gpt-oss-120b") or {}, name="oss")
    advice = advise(model, SETTINGS, gpu_spec("h100"), Case(32_768, 4))
    assert any("× 1.13: MXFP4 is padded" in note for note in advice.notes)
    assert any("nvidia-smi" in note for note in advice.notes)
    assert not any("weights" in note for note in weigh(Case(32_768, 4)).notes)


def test_more_cards_are_weighed_where_the_own_dtype_does_not_fit() -> None:
    assert not [o for o in weigh(Case(32_768, 14)).options if o.effort == "more GPUs"]
    advice = weigh(Case(32_768, 64))
    two, fp8 = option(advice, "2 GPUs, model's own"), option(advice, "2 GPUs, FP8")
    # On each of two cards half of a request lies, and half of the weights.
    assert (two.gpus, two.memory_ratio, two.fits) == (2, pytest.approx(2.0, rel=1e-3), False)
    assert two.concurrency is not None
    assert fp8.concurrency == pytest.approx(2 * two.concurrency, rel=1e-3)
    assert fp8.change == "--tensor-parallel-size 2 --kv-cache-dtype fp8"
    # Two cards are enough with FP8, so of four only the model's own dtype is told, which fits.
    assert [o.strategy for o in advice.options if o.gpus > 2] == ["4 GPUs, model's own dtype"]
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
    assert plain.change == "--no-enable-prefix-caching"
    assert shared.concurrency == pytest.approx((blocks - 1 - 62) / 66)
    assert (shared.effort, shared.change) == ("none", "prefix caching, vLLM's default")
    assert shared.ttft_ratio is not None
    assert shared.ttft_ratio < 0.7


def test_fp8_is_weighed_with_the_shared_prefix_and_not_only_beside_it() -> None:
    case = Case(2048, 700, shared_prefix_tokens=1000)
    advice = weigh(case)
    shared, both = option(advice, "sharing"), option(advice, "FP8 and sharing")
    # Twice the blocks, of which 62 hold the prefix: (2n + 1 − 1 − 62) / 66.
    assert shared.concurrency is not None
    assert both.concurrency == pytest.approx(2 * shared.concurrency + 62 / 66, rel=0.01)
    assert advice.recommended == "FP8 and sharing a prefix of 1,000 tokens"
    assert option(advice, "2 GPUs, model's own dtype, prefix shared").effort == "more GPUs"
    # What the engine does by itself is enough for fewer: then nothing is to be done.
    few = weigh(replace(case, concurrency=20))
    assert few.recommended == "sharing a prefix of 1,000 tokens"
    assert "fit as they are" in few.why


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
