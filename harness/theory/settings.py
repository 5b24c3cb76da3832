"""The server settings that decide how the KV pool is cut, with the pinned engine's defaults.

Names are vLLM's own. Not covered: settings that change only speed, and the byte budget, which is
passed beside them. Source: vLLM 0.32.0, ``engine/arg_utils.py`` and ``config/vllm.py``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from harness.errors import InputError
from harness.specs.eviction import EvictionRule, SnapKvRule, rule_from_env
from harness.specs.fields import MOST_DRAFTS
from harness.units import GIB, Bytes, Tokens

Device = Literal["cuda", "cpu"]

_CUDA_BLOCK: Tokens = 16
_CPU_BLOCK: Tokens = 128
_SERVER_BATCH: Tokens = 2048
#: Ways of drafting that need a step's result before the next one can be scheduled.
_DRAFTS_IN_STEP = ("ngram", "suffix", "medusa", "mlp_speculator", "custom_class")

#: What the engine's ``--dtype`` takes.
DTYPES = ("auto", "half", "float16", "bfloat16", "float", "float32")

#: No count of the engine has more than 64 bits, and nobody splits one model further than that:
#: shares are worked out per stage.
_MOST = 1 << 62
MOST_PROCESSES = 512
_POSITIVE = (
    "block_size",
    "max_model_len",
    "max_num_batched_tokens",
    "max_num_seqs",
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "decode_context_parallel_size",
)

_SPELLED_ALIKE = (
    "kv_cache_dtype",
    "dtype",
    "block_size",
    "max_model_len",
    "max_num_batched_tokens",
    "max_num_seqs",
    "quantization",
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "decode_context_parallel_size",
    "enable_prefix_caching",
    "async_scheduling",
    "mamba_cache_dtype",
    "mamba_ssm_cache_dtype",
    "disable_hybrid_kv_cache_manager",
)


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """What a vLLM server was told, as far as its KV cache is concerned.

    None means the engine's own default. ``async_scheduling`` asks for a step that is scheduled
    while the one before still runs; False is also what engines before 0.26 charged windows with.
    ``cpu_features`` (``amx``, ``avx512_bf16``) are the CPU's own,
    since the CPU backend chooses block size and state dtype by them. ``eviction`` is the
    rule of the plugin in ``engines/eviction``, if its variable is set; ``snapkv`` its other rule,
    which frees blocks after a prompt and so leaves capacity and peak as they are.
    """

    device: Device = "cuda"
    kv_cache_dtype: str = "auto"
    dtype: str = "auto"
    block_size: int | None = None
    max_model_len: int | None = None
    max_num_batched_tokens: int | None = None
    max_num_seqs: int = 256
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    decode_context_parallel_size: int = 1
    enable_prefix_caching: bool | None = None
    num_speculative_tokens: int = 0
    async_scheduling: bool | None = None
    mamba_cache_dtype: str = "auto"
    mamba_ssm_cache_dtype: str = "auto"
    kv_cache_dtype_skip_layers: tuple[str, ...] = ()
    disable_hybrid_kv_cache_manager: bool = False
    speculative_method: str = "mtp"
    quantization: str | None = None
    cpu_features: frozenset[str] = frozenset()
    eviction: EvictionRule | None = None
    snapkv: SnapKvRule | None = None

    def __post_init__(self) -> None:
        for name in _POSITIVE:
            value = getattr(self, name)
            most = MOST_PROCESSES if name.endswith("parallel_size") else _MOST
            if value is not None:
                _whole(name, value, 1, most)
        _whole("num_speculative_tokens", self.num_speculative_tokens, 0, MOST_DRAFTS)
        if self.dtype.removeprefix("torch.") not in DTYPES:
            raise InputError(
                f"unknown dtype {self.dtype!r} of weights and activations",
                where="dtype",
                legal=DTYPES,
            )

    @property
    def default_block_size(self) -> Tokens:
        """The block size before any model-specific adjustment."""
        fallback = _CUDA_BLOCK if self.device == "cuda" else _CPU_BLOCK
        return self.block_size or fallback

    @property
    def batch_tokens(self) -> Tokens:
        """Tokens of one scheduler step, ``max_num_batched_tokens`` or its default."""
        if self.max_num_batched_tokens is not None:
            return self.max_num_batched_tokens
        world = self.tensor_parallel_size * self.pipeline_parallel_size
        return _SERVER_BATCH * (world if self.device == "cpu" else 1)

    @property
    def batches_in_flight(self) -> int:
        """Steps whose tokens may be unsettled at once; only windows and eviction feel it.

        One per pipeline stage, and one more where the scheduler runs ahead of the device: by
        default on CUDA, never on the CPU. Source: vLLM 0.32.0, ``max_concurrent_batches`` and
        the defaults above it, with the model runner that CUDA takes.
        """
        return self.pipeline_parallel_size + (1 if self.schedules_ahead else 0)

    @property
    def schedules_ahead(self) -> bool:
        """Whether a step is scheduled before the one that runs is done."""
        if self.device == "cpu":
            return False
        if self.async_scheduling is not None:
            return self.async_scheduling
        return not (self.num_speculative_tokens and self.speculative_method in _DRAFTS_IN_STEP)

    @property
    def tokens_in_flight(self) -> Tokens:
        """Tokens that may be scheduled but not yet settled."""
        return self.batches_in_flight * self.batch_tokens


def _whole(name: str, value: object, least: int, most: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        fault = f"is a whole number, not {value!r:.60}"
    elif value < least:
        fault = f"must be at least {least}, not {value:.6g}"
    elif value > most:
        fault = f"must be at most {most}, not {value:.6g}"
    else:
        return value
    raise InputError(f"{name} {fault}", where=name, legal=[f"{least} to {most}"])


def default_max_num_batched_tokens(memory_bytes: Bytes, device_name: str) -> Tokens:
    """The API server's default step size on a CUDA device: it grows with the card."""
    if memory_bytes >= 160 * GIB:
        return 16384
    if memory_bytes >= 70 * GIB and "a100" not in device_name.lower():
        return 8192
    return _SERVER_BATCH


def with_default_step(
    flags: Mapping[str, Any], device: Device, cards: Iterable[tuple[Bytes | None, str]]
) -> dict[str, Any]:
    """The flags, and the step that the engine takes on these cards where none is stated.

    ``cards`` are bytes and name of each; of unlike ones the smallest decides. Nothing is added
    without a card of known size, nor where the engine runs on the CPU beside it.
    """
    known = [(size, name) for size, name in cards if size is not None and device == "cuda"]
    if flags.get("max_num_batched_tokens") is not None or not known:
        return dict(flags)
    step = default_max_num_batched_tokens(*min(known))
    return {**flags, "max_num_batched_tokens": step}


def settings_from_flags(
    flags: Mapping[str, Any],
    device: Device,
    *,
    cpu_features: frozenset[str] = frozenset(),
    env: Mapping[str, str] | None = None,
) -> EngineSettings:
    """Read vLLM flags in vLLM's spelling; keys that do not concern the KV cache are ignored.

    ``hf_overrides`` is not read here: merge it into the config before ``model_spec``
    (``harness.overlay.overlay``). ``env`` is the server's environment: it may ask for
    token eviction.
    """
    known = {key: flags[key] for key in _SPELLED_ALIKE if flags.get(key) is not None}
    skipped = flags.get("kv_cache_dtype_skip_layers") or ()
    speculative = flags.get("speculative_config")
    speculative = speculative if isinstance(speculative, Mapping) else {}
    if speculative.get("disable_padded_drafter_batch"):
        known.setdefault("async_scheduling", False)
    drafts = speculative.get("num_speculative_tokens") or flags.get("num_speculative_tokens") or 0
    # One layer may be given without a list around it, as on a command line.
    skipped = skipped if isinstance(skipped, list | tuple) else (skipped,)
    rule = rule_from_env(env or {})
    return EngineSettings(
        device=device,
        num_speculative_tokens=drafts,
        speculative_method=str(speculative.get("method", "mtp")),
        kv_cache_dtype_skip_layers=tuple(str(layer) for layer in skipped),
        cpu_features=cpu_features,
        eviction=rule if isinstance(rule, EvictionRule) else None,
        snapkv=rule if isinstance(rule, SnapKvRule) else None,
        **known,
    )
