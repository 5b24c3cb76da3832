"""Models and settings whose plan is asked of the real engine; the shipped configs, in full size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from harness.specs.model import shipped_config
from harness.units import GIB

BUDGET = 20 * GIB
_LENGTH = 8192
#: Text models of multimodal checkpoints, under the architecture that serves the text alone.
_TEXT_ARCHITECTURES = {
    "gemma3_text": "Gemma3ForCausalLM",
    "gemma4_text": "Gemma4ForCausalLM",
    "llama4_text": "Llama4ForCausalLM",
}


@dataclass(frozen=True)
class EngineCase:
    name: str
    config: dict[str, Any]
    flags: dict[str, Any]

    def as_json(self) -> dict[str, Any]:
        return {"name": self.name, "config": self.config, "flags": self.flags, "memory": BUDGET}


def _config(model: str) -> dict[str, Any]:
    config = dict(shipped_config(model) or {})
    if (text := config.get("text_config")) is not None:
        config = {**text, "architectures": [_TEXT_ARCHITECTURES[text["model_type"]]]}
    # The plan does not depend on how weights are stored, and the CPU build can't load them all.
    config.pop("quantization_config", None)
    return config


def _case(label: str, model: str, fields: dict[str, Any] | None = None, **flags: Any) -> EngineCase:
    config = {**_config(model), **(fields or {})}
    length = min(_LENGTH, config.get("max_position_embeddings", _LENGTH))
    return EngineCase(label, config, {"max_model_len": length, **flags})


def _drafts(count: int) -> dict[str, Any]:
    return {"speculative_config": {"method": "mtp", "num_speculative_tokens": count}}


#: One of each kind of layout, in both dtypes where they differ: in every run of the suite.
FAST = (
    _case("full attention", "meta-llama/Llama-3.1-8B-Instruct"),
    _case("full attention, fp8", "meta-llama/Llama-3.1-8B-Instruct", kv_cache_dtype="fp8"),
    _case("full attention over 4 GPUs", "meta-llama/Llama-3.1-8B-Instruct", tensor_parallel_size=4),
    _case(
        "full attention in 3 stages", "meta-llama/Llama-3.1-8B-Instruct", pipeline_parallel_size=3
    ),
    _case("one window for all", "mistralai/Mistral-7B-v0.1", max_num_batched_tokens=1024),
    _case("windows and full, 5:1", "google/gemma-3-1b-it"),
    _case("latent", "deepseek-ai/DeepSeek-V2-Lite"),
    _case("recurrent hybrid", "Qwen/Qwen3-Next-80B-A3B-Instruct"),
    _case("recurrent hybrid, fp8", "Qwen/Qwen3-Next-80B-A3B-Instruct", kv_cache_dtype="fp8"),
)

_BOTH_DTYPES = (
    "meta-llama/Llama-3.1-8B-Instruct",
    "mistralai/Mistral-7B-v0.1",
    "google/gemma-2-9b-it",
    "google/gemma-3-12b-it",
    "google/gemma-4-26B-A4B",
    "google/gemma-4-31B-it",
    "openai/gpt-oss-20b",
    "Qwen/Qwen3-8B",
    "Qwen/Qwen3-30B-A3B",
    "Qwen/Qwen3-Next-80B-A3B-Instruct",
    "nvidia/Nemotron-H-8B-Base-8K",
    "nvidia/NVIDIA-Nemotron-Nano-9B-v2",
    "deepseek-ai/DeepSeek-V2-Lite",
    "deepseek-ai/DeepSeek-V3",
    "meta-llama/Llama-4-Scout-17B-16E-Instruct",
    "ibm-granite/granite-4.0-h-tiny",
    "ai21labs/Jamba-v0.1",
    "LiquidAI/LFM2-1.2B",
    "allenai/Olmo-3-7B-Instruct",
    "CohereLabs/c4ai-command-a-03-2025",
    "HuggingFaceTB/SmolLM2-135M-Instruct",
    "tiiuae/falcon-7b",
    "zai-org/GLM-4.5-Air",
    "microsoft/Phi-3-mini-4k-instruct",
)

_SETTINGS = (
    _case("16 GPUs for 8 KV heads", "meta-llama/Llama-3.1-8B-Instruct", tensor_parallel_size=16),
    _case(
        "decode context parallel",
        "meta-llama/Llama-3.1-8B-Instruct",
        tensor_parallel_size=16,
        decode_context_parallel_size=2,
    ),
    _case(
        "latent, decode context parallel",
        "deepseek-ai/DeepSeek-V2-Lite",
        tensor_parallel_size=4,
        decode_context_parallel_size=2,
    ),
    _case("windows in 5 stages", "openai/gpt-oss-20b", pipeline_parallel_size=5),
    _case("windows in 4 stages", "google/gemma-3-12b-it", pipeline_parallel_size=4),
    _case("block size 64", "google/gemma-2-9b-it", block_size=64, max_num_batched_tokens=4096),
    _case("no hybrid manager", "google/gemma-2-9b-it", disable_hybrid_kv_cache_manager=True),
    _case(
        "no hybrid manager, two head sizes",
        "google/gemma-4-26B-A4B",
        disable_hybrid_kv_cache_manager=True,
    ),
    _case("13 + 12 layers", "openai/gpt-oss-20b", {"num_hidden_layers": 25}),
    _case(
        "listed layer types",
        "meta-llama/Llama-3.1-8B-Instruct",
        {"layer_types": ["sliding_attention", "full_attention"] * 16, "sliding_window": 512},
    ),
    _case(
        "a switched window",
        "Qwen/Qwen3-8B",
        {"use_sliding_window": True, "sliding_window": 1024, "max_window_layers": 0},
    ),
    _case("hybrid over 2 GPUs", "Qwen/Qwen3-Next-80B-A3B-Instruct", tensor_parallel_size=2),
    _case("hybrid in 3 stages", "Qwen/Qwen3-Next-80B-A3B-Instruct", pipeline_parallel_size=3),
    _case(
        "hybrid without prefix caching",
        "Qwen/Qwen3-Next-80B-A3B-Instruct",
        tensor_parallel_size=4,
        enable_prefix_caching=False,
    ),
    _case("grouped scan over 8 GPUs", "nvidia/Nemotron-H-8B-Base-8K", tensor_parallel_size=8),
    _case(
        "grouped scan without prefix caching",
        "nvidia/NVIDIA-Nemotron-Nano-9B-v2",
        tensor_parallel_size=2,
        enable_prefix_caching=False,
    ),
    _case("hybrid with one draft token", "Qwen/Qwen3-Next-80B-A3B-Instruct", **_drafts(1)),
    _case(
        "hybrid with two draft tokens over 2 GPUs",
        "Qwen/Qwen3-Next-80B-A3B-Instruct",
        tensor_parallel_size=2,
        **_drafts(2),
    ),
    _case("latent with a draft layer", "deepseek-ai/DeepSeek-V3", **_drafts(1)),
    _case("full attention with a draft layer", "zai-org/GLM-4.5-Air", **_drafts(1)),
    _case(
        "drafts from the prompt",
        "nvidia/Nemotron-H-8B-Base-8K",
        speculative_config={
            "method": "ngram",
            "num_speculative_tokens": 3,
            "prompt_lookup_max": 4,
        },
    ),
    _case(
        "a hybrid class without attention layers",
        "ibm-granite/granite-4.0-h-tiny",
        {"layer_types": ["mamba"] * 40},
    ),
    _case("one group over 2 GPUs", "ibm-granite/granite-4.0-h-small", tensor_parallel_size=2),
    _case("float32 states", "ibm-granite/granite-4.0-h-tiny", mamba_ssm_cache_dtype="float32"),
)

ALL = (
    *FAST,
    *(_case(model, model) for model in _BOTH_DTYPES),
    *(_case(f"{model}, fp8", model, kv_cache_dtype="fp8") for model in _BOTH_DTYPES),
    *_SETTINGS,
)
