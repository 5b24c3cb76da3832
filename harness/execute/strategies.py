"""What a variant's strategy asks for beyond its flags: emulation, and what can't be run as asked.

Preallocation is emulated by its consequence: a server that reserves ``max_model_len`` tokens for
every request lets in ``floor(pool tokens / max_model_len)`` of them, so ``max_num_seqs`` is capped
there. Everything else stays as it is, paging too; the figures are stamped ``emulated``.

Two faults are found here since the engine does not find them, or only after a long start: query
heads that KV heads do not divide, and KV dtypes that the CPU backend does not know and takes all
the same. Not covered: dtypes that a GPU refuses; the engine says so itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from harness.errors import ScenarioError
from harness.scenario import Trial
from harness.specs.fields import text_fields
from harness.specs.model import ModelSpec
from harness.theory.capacity import predict_capacity
from harness.theory.settings import settings_from_flags
from harness.units import Bytes

#: Source: vLLM 0.32.0, ``v1/attention/backends/cpu_attn.py`` (``supported_kv_cache_dtypes``); a
#: test holds this list against the installed engine's. ``bfloat16`` and ``float16`` are left out
#: where they are the model's own type, which is ``auto``.
CPU_KV_DTYPES = ("auto", "fp8", "fp8_e4m3", "fp8_e5m2")
_PLAIN = ("bfloat16", "float16")


def emulation_flags(
    trial: Trial,
    extra: Mapping[str, Any],
    model: ModelSpec | None,
    pool_bytes: Bytes | None,
    device: Literal["cpu", "cuda"],
) -> dict[str, Any]:
    """The flags that stand in for a strategy that the engine does not have.

    Raises:
        ScenarioError: the pool's size, or the model's layout, is not known before the start.
    """
    if trial.emulate is None:
        return {}
    if model is None or pool_bytes is None:
        raise ScenarioError(
            f"how many whole-length reservations fit the pool of {trial.variant!r} is not known "
            "before the start",
            where="variants",
            next_move="state the pool: kv_budget: {equal_bytes: 2GiB}",
        )
    settings = settings_from_flags({**trial.flags, **extra}, device, env=trial.env)
    capacity = predict_capacity(model, settings, pool_bytes)
    tokens = capacity.kv_cache_tokens or 0
    return {"max_num_seqs": max(tokens // capacity.max_model_len, 1)}


def refusal(trial: Trial, device: Literal["cpu", "cuda"]) -> str | None:
    """Why the device can't run this trial as asked though the engine would start; else None."""
    dtype = trial.flags.get("kv_cache_dtype", "auto")
    if device != "cpu" or dtype in CPU_KV_DTYPES or dtype in _PLAIN:
        return None
    return (
        f"the CPU backend of vLLM lists {', '.join(CPU_KV_DTYPES)} as its KV dtypes; it starts "
        "with others all the same, but keeps plain 8-bit values without their scales and answers "
        "with broken text: what ran would not be what was asked for"
    )


def check_heads(trial: Trial, config: Mapping[str, Any] | None) -> None:
    """Refuse overrides under which the KV heads do not divide the query heads.

    Raises:
        ScenarioError: such an override.
    """
    overrides = trial.flags.get("hf_overrides")
    if config is None or not isinstance(overrides, dict):
        return
    fields = text_fields(config)
    queries, keys = fields.get("num_attention_heads"), fields.get("num_key_value_heads")
    if not isinstance(queries, int) or not isinstance(keys, int):
        return
    if keys < 1 or queries % keys:
        legal = [str(count) for count in range(1, queries + 1) if queries % count == 0]
        raise ScenarioError(
            f"{keys} KV heads do not divide the model's {queries} query heads",
            where=f"variants.{trial.variant}.hf_overrides.num_key_value_heads",
            legal=legal,
        )
