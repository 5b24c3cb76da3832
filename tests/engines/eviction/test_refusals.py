"""What was not tested with eviction is refused by name, never served with full attention."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from harness.engines.eviction import unwired
from harness.engines.eviction.refusals import (
    EvictionRefused,
    check_config,
    check_snapkv,
    check_version,
)


def config(**changes: Any) -> SimpleNamespace:
    """As much of the engine's configuration as the checks read, all of it harmless."""
    made = SimpleNamespace(
        kv_transfer_config=None,
        speculative_config=None,
        parallel_config=SimpleNamespace(
            decode_context_parallel_size=1,
            prefill_context_parallel_size=1,
            enable_dbo=False,
            ubatch_size=0,
        ),
        cache_config=SimpleNamespace(kv_sharing_fast_prefill=False),
        model_config=SimpleNamespace(
            use_mla=False,
            is_hybrid=False,
            is_encoder_decoder=False,
            is_mm_prefix_lm=False,
            rswa_window=None,
            is_multimodal_model=False,
        ),
        scheduler_config=SimpleNamespace(
            enable_chunked_prefill=False, long_prefill_token_threshold=0
        ),
    )
    for path, value in changes.items():
        *parents, name = path.split("__")
        place: Any = made
        for parent in parents:
            place = getattr(place, parent)
        assert hasattr(place, name)
        setattr(place, name, value)
    return made


def layer(window: int | None = None, alibi: list[float] | None = None) -> SimpleNamespace:
    return SimpleNamespace(sliding_window=window, impl=SimpleNamespace(alibi_slopes=alibi))


def test_a_plain_decoder_is_taken_with_and_without_windows_of_its_own() -> None:
    check_config(config(), [layer(), layer()], 512)
    check_config(config(), [layer(1024), layer()], 512)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"kv_transfer_config": object()}, "KV connectors"),
        ({"speculative_config": object()}, "speculative decoding"),
        ({"parallel_config__decode_context_parallel_size": 2}, "context parallelism"),
        ({"parallel_config__prefill_context_parallel_size": 2}, "context parallelism"),
        ({"parallel_config__enable_dbo": True}, "dual-batch overlap"),
        ({"cache_config__kv_sharing_fast_prefill": True}, "kv_sharing_fast_prefill"),
        ({"model_config__use_mla": True}, "MLA"),
        ({"model_config__is_hybrid": True}, "recurrent layers"),
        ({"model_config__is_encoder_decoder": True}, "encoder-decoder"),
        ({"model_config__is_mm_prefix_lm": True}, "bidirectional prefixes"),
        ({"model_config__rswa_window": 64}, "reference sliding windows"),
    ],
)
def test_each_untested_setting_is_named(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(EvictionRefused, match=named):
        check_config(config(**changes), [layer()], 512)


def test_all_reasons_are_told_at_once() -> None:
    untested = config(speculative_config=object(), model_config__use_mla=True)
    with pytest.raises(EvictionRefused, match=r"speculative decoding; MLA"):
        check_config(untested, [layer()], 512)


def test_alibi_is_refused() -> None:
    with pytest.raises(EvictionRefused, match="ALiBi"):
        check_config(config(), [layer(alibi=[0.5])], 512)


def test_a_model_window_as_wide_as_ours_is_refused() -> None:
    with pytest.raises(EvictionRefused, match="a window of 512 tokens of their own"):
        check_config(config(), [layer(512), layer()], 512)


def test_a_model_of_windows_only_is_refused() -> None:
    with pytest.raises(EvictionRefused, match="nothing to evict"):
        check_config(config(), [layer(1024), layer(1024)], 512)


def scored_layer(**changes: Any) -> SimpleNamespace:
    impl = SimpleNamespace(alibi_slopes=None, logits_soft_cap=0, sinks=None)
    made = SimpleNamespace(sliding_window=None, kv_sharing_target_layer_name=None, impl=impl)
    for name, value in changes.items():
        assert hasattr(made, name) != hasattr(impl, name)
        setattr(made if hasattr(made, name) else impl, name, value)
    return made


def test_the_rule_by_score_takes_a_plain_decoder_with_whole_prompts() -> None:
    check_snapkv(config(), [scored_layer(), scored_layer()])


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"scheduler_config__enable_chunked_prefill": True}, "set enable_chunked_prefill to false"),
        ({"scheduler_config__long_prefill_token_threshold": 512}, "long_prefill_token_threshold"),
        ({"model_config__is_multimodal_model": True}, "multimodal"),
        ({"kv_transfer_config": object()}, "KV connectors"),
        ({"speculative_config": object()}, "speculative decoding"),
        ({"parallel_config__decode_context_parallel_size": 2}, "context parallelism"),
        ({"model_config__use_mla": True}, "MLA"),
    ],
)
def test_what_would_cut_or_move_a_prompt_is_named(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(EvictionRefused, match=f"SnapKV was not tested with .*{named}"):
        check_snapkv(config(**changes), [scored_layer()])


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"sliding_window": 512}, "layers with a window of their own"),
        ({"kv_sharing_target_layer_name": "layer.0"}, "share another layer's cache"),
        ({"alibi_slopes": [0.5]}, "ALiBi"),
        ({"logits_soft_cap": 30.0}, "soft cap"),
        ({"sinks": [0.1]}, "learned attention sinks"),
    ],
)
def test_attention_that_scores_would_misjudge_is_named(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(EvictionRefused, match=named):
        check_snapkv(config(), [scored_layer(), scored_layer(**changes)])


def test_only_tested_engine_versions_are_taken() -> None:
    check_version("0.32.0")
    check_version("0.32.0+cpu")
    with pytest.raises(EvictionRefused, match=r"vLLM 0\.33\.0 was not tested \(tested: 0\.32\.0\)"):
        check_version("0.33.0")


def test_a_backend_that_is_not_wired_can_not_be_imported() -> None:
    with pytest.raises(ImportError, match="FLASHINFER is not wired to it"):
        _ = unwired.FLASHINFER
    with pytest.raises(ImportError, match="refused: MLA: the attention backend CPU_MLA"):
        _ = unwired.CPU_MLA
    assert not hasattr(unwired, "__path__")


def test_under_the_rule_by_score_only_the_cpu_backend_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("KVBENCH_EVICTION", "snapkv=512")
    with pytest.raises(ImportError, match=r"FLASH_ATTN is not wired to it \(wired for SnapKV: CPU"):
        _ = unwired.FLASH_ATTN
