"""What looks like a secret is neither stored nor taken from a scenario; what does not, is."""

from __future__ import annotations

from typing import Any

import pytest

from harness.scenario.schema import check_env, check_flags, holds_secret

SECRETS = [
    ("VLLM_AUTH", "abc"),
    ("VLLM_AUTHORIZATION", "abc"),
    ("VLLM_COOKIE", "abc"),
    ("VLLM_PASSPHRASE", "abc"),
    ("VLLM_X", "http://h/?api_key=abc"),
    ("VLLM_X", "http://h/v1?a=b&access_token=abc"),
    ("VLLM_X", "http://h/v1#token=abc"),
    ("VLLM_X", "https://acc.blob/x?sv=1&sig=abc"),
    ("VLLM_X", "http://name@h/"),
    ("VLLM_X", "password=abc"),
    ("VLLM_X", '{"secret": "abc"}'),
    ("VLLM_X", "X-Auth-Token: abc"),
    ("VLLM_X", "Authorization: Basic abc"),
    ("VLLM_X", "Bearer abc"),
    ("VLLM_X", "sk-abcdefghij"),
    ("VLLM_X", "hf_abcdefghij"),
]
PLAIN = [
    ("VLLM_LOGGING_LEVEL", "INFO"),
    ("KVBENCH_EVICTION", "sinks=32,window=512"),
    ("VLLM_AUTHOR", "x"),
    ("OMP_NUM_THREADS", "8"),
    ("NCCL_DEBUG_FILE", "/tmp/nccl.%h.%p"),  # noqa: S108 - only a value
    ("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True,max_split_size_mb:128"),
    ("VLLM_CACHE_ROOT", "http://host:8000/v1?level=3"),
]


@pytest.mark.parametrize(("name", "value"), SECRETS)
def test_a_variable_that_looks_like_a_secret_is_refused_without_its_value(
    name: str, value: str
) -> None:
    assert holds_secret(name, value)
    with pytest.raises(ValueError, match="looks like a secret") as caught:
        check_env({name: value})
    assert "abc" not in str(caught.value)


@pytest.mark.parametrize(("name", "value"), PLAIN)
def test_a_plain_setting_passes(name: str, value: str) -> None:
    assert not holds_secret(name, value)
    assert check_env({name: value}) == {name: value}


@pytest.mark.parametrize(
    "value",
    [
        "http://u:abc@h/",
        "http://h/?api_key=abc",
        ["x", "http://h/?token=abc"],
        {"url": "http://h/?token=abc"},
        {"a": [{"api_key": "abc"}]},
    ],
)
def test_a_flag_with_a_secret_inside_is_refused(value: Any) -> None:
    with pytest.raises(ValueError, match="looks like a secret") as caught:
        check_flags({"kv_transfer_config": value})
    assert "abc" not in str(caught.value)


def test_a_flag_of_tokens_is_no_secret() -> None:
    flags = {"max_num_batched_tokens": 2048, "logits_processors": ["a.b:ForcedTokens"]}
    assert check_flags(flags) == flags


def test_a_long_value_is_looked_through_in_no_time() -> None:
    for text in ("://" * 50_000, "key" * 50_000, "://?" * 30_000, "bearer" * 30_000):
        holds_secret("VLLM_X", text)
