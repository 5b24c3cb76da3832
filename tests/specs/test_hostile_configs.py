"""Configs of any form are read or refused, never met by a stack trace; a seed makes it repeatable.

The real configs that ship are changed in one or two places and sent through all of calc's
arithmetic. Not covered: whether a figure of a changed config is right.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

import pytest

from harness.cli.calc_figures import Memory, figures, variants_of
from harness.errors import InputError, ModelConfigError
from harness.overlay import overlay
from harness.specs.gpu import gpu_spec
from harness.specs.model import model_spec, shipped_config, shipped_names
from harness.theory.settings import EngineSettings
from harness.theory.weights import weight_footprint

CARD = gpu_spec("h100")
MEMORY = Memory(
    gpu=CARD,
    total_bytes=CARD.memory_bytes,
    weights_bytes=None,
    overhead_bytes=None,
    kv_bytes=None,
    utilization=0.9,
)
VALUES: tuple[Any, ...] = (
    0, -1, 1, 2, 7, 0.5, 1e30, 10**6, 10**9, 10**30, 10**400, True, False, None, "", "x", "4",
    float("inf"), float("nan"), [], {}, [1], [None], [[]], [{}], ["full_attention"],
    ["sliding_attention", 5], {"a": 1}, {"factor": 0}, {"rope_type": "linear", "factor": -2},
    {"rope_type": "linear", "factor": "abc"}, {"rope_type": "linear", "factor": 1e300},
    {"rope_type": [], "factor": 2}, {"quant_method": 5}, {"quant_method": "awq", "bits": -4},
    {"quant_method": "awq", "group_size": "x"}, {"quant_method": []},
    {"quant_method": "compressed-tensors", "config_groups": {"a": {"weights": {"num_bits": "x"}}}},
)  # fmt: skip
EXTRA = (
    "quantization_config", "rope_scaling", "rope_parameters", "layer_types", "sliding_window",
    "text_config", "architectures", "kv_lora_rank", "num_kv_shared_layers", "model_type",
    "max_position_embeddings", "vision_config", "mlp_only_layers", "num_nextn_predict_layers",
    "partial_rotary_factor", "dtype", "model_max_length", "head_dim", "num_key_value_heads",
)  # fmt: skip
#: Configs tried; a few seconds on a slow machine.
TRIES = 100


def spots(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every part of a config, of lists the first three items."""
    if path:
        yield path
    if isinstance(value, dict):
        for key in value:
            yield from spots(value[key], (*path, key))
    elif isinstance(value, list):
        for index in range(min(3, len(value))):
            yield from spots(value[index], (*path, index))


def spoil(config: Any, draw: random.Random) -> list[tuple[tuple[Any, ...], Any]]:
    """Change one or two parts of a config in place; what was changed, for the message."""
    done = []
    for _ in range(draw.choice((1, 1, 1, 2))):
        extra = [(key,) for key in EXTRA]
        *outer, last = draw.choice([*spots(config), *extra])
        value = draw.choice(VALUES)
        inside = config
        for key in outer:
            inside = inside[key]
        inside[last] = value
        done.append(((*outer, last), value))
    return done


def compute(config: Any, name: str, settings: EngineSettings) -> None:
    """All that calc works out; its figures can be written as JSON."""
    spec = model_spec(config, name=name)
    for variant in variants_of(spec, settings, None):
        json.dumps(figures(variant, MEMORY, [8192], 4), allow_nan=False)


def test_a_config_of_any_form_is_read_or_refused_with_a_message() -> None:
    draw, names, lengths = random.Random(20261130), shipped_names(), []  # noqa: S311
    for _ in range(TRIES):
        name = draw.choice(names)
        config = json.loads(json.dumps(dict(shipped_config(name) or {})))
        changed = spoil(config, draw)
        settings = EngineSettings(
            max_num_batched_tokens=8192,
            tensor_parallel_size=draw.choice((1, 1, 2)),
            num_speculative_tokens=draw.choice((0, 0, 1)),
        )
        try:
            compute(config, name, settings)
        except InputError as error:
            lengths.append(len(str(error)))
        except Exception as error:
            pytest.fail(f"{type(error).__name__}: {error} <- {name} with {changed}"[:600])
    # Both ends are reached: what is sound enough is still worked out.
    assert TRIES // 10 < len(lengths) < TRIES * 9 // 10
    # A message quotes a value's beginning, not a page of it.
    assert 10 < min(lengths) <= max(lengths) < 2000


LLAMA = "meta-llama/Llama-3.1-8B-Instruct"


@pytest.mark.parametrize(
    ("model", "changes", "told"),
    [
        (LLAMA, {"rope_scaling": {"rope_type": "linear", "factor": -2}}, "factor is -2"),
        (LLAMA, {"rope_scaling": {"rope_type": "linear", "factor": 0}}, "factor is 0"),
        (LLAMA, {"rope_scaling": {"rope_type": "linear", "factor": "abc"}}, "factor is 'abc'"),
        (LLAMA, {"num_key_value_heads": 0}, "num_key_value_heads is 0"),
        (LLAMA, {"num_key_value_heads": 7}, "7: so many KV heads do not divide 32"),
        (LLAMA, {"num_key_value_heads": 64}, "64: so many KV heads do not divide 32"),
        (LLAMA, {"num_hidden_layers": 10**9}, "1000000000, out of range"),
        (LLAMA, {"num_nextn_predict_layers": 10**9}, "1000000000, out of range"),
        (LLAMA, {"max_position_embeddings": 0}, "max_position_embeddings is 0"),
        (LLAMA, {"model_max_length": 0}, "model_max_length is 0"),
        (LLAMA, {"rope_scaling": {"rope_type": "linear", "factor": 1e30}}, "no factor"),
        ("Qwen/Qwen3-235B-A22B-FP8", {"num_experts": 2}, "num_experts_per_tok is 8, out of range"),
        ("moonshotai/Kimi-Linear-48B-A3B-Instruct", {"linear_attn_config": 2}, "no section"),
        (
            "Qwen/Qwen3-VL-2B-Instruct",
            {"vision_config": {"num_position_embeddings": "x"}},
            "num_position_embeddings is 'x'",
        ),
        (
            "Qwen/Qwen3-VL-2B-Instruct",
            {"vision_config": {"spatial_merge_size": [None]}},
            "spatial_merge_size",
        ),
    ],
)
def test_a_field_that_no_model_has_is_named_with_what_is_legal(
    model: str, changes: dict[str, Any], told: str
) -> None:
    config = overlay(shipped_config(model) or {}, changes)
    with pytest.raises(ModelConfigError, match=told) as caught:
        weight_footprint(model_spec(config, name=model), EngineSettings())
    assert caught.value.legal
    assert model in (caught.value.where or "")
