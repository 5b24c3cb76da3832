from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

from harness.specs.model import ModelSpec
from harness.theory.settings import EngineSettings
from harness.theory.unserved import (
    LATENT_KV_DTYPES,
    eviction_unserved,
    kv_dtype_unserved,
    window_pointless,
)
from tests.theory.small import HYBRID, LATENT, shipped, small


def test_the_latent_dtypes_are_those_of_the_installed_engines_mla_backends() -> None:
    # Found, not imported: that would load torch.
    engine = importlib.util.find_spec("vllm")
    assert engine is not None
    assert engine.origin is not None
    room = Path(engine.origin).parent / "v1" / "attention" / "backends" / "mla"
    listed: set[str] = set()
    for file in room.glob("*.py"):
        for found in re.findall(
            r"supported_kv_cache_dtypes.*?= \[(.*?)\]", file.read_text(), re.DOTALL
        ):
            listed |= set(re.findall(r'"(\w+)"', found))
    assert listed == LATENT_KV_DTYPES


@pytest.mark.parametrize(
    ("model", "dtype", "told"),
    [
        (small(LATENT), "int4_per_token_head", "no MLA backend of vLLM 0.32.0 takes int4"),
        (small(LATENT), "fp8", None),
        (small(LATENT), "auto", None),
        (small(), "int4_per_token_head", None),
    ],
)
def test_a_kv_dtype_is_refused_where_no_latent_backend_takes_it(
    model: ModelSpec, dtype: str, told: str | None
) -> None:
    why = kv_dtype_unserved(model, EngineSettings(kv_cache_dtype=dtype))
    assert why is None if told is None else told in (why or "")


@pytest.mark.parametrize(
    ("model", "told"),
    [
        (small(LATENT), "MLA"),
        (small(HYBRID), "recurrent layers"),
        (shipped("openai/gpt-oss-20b"), "learned attention sinks"),
        (shipped("google/gemma-2-9b-it"), "soft cap"),
        (shipped("mistralai/Mistral-7B-v0.1"), "no layer sees the whole context"),
        (small(), None),
    ],
)
def test_models_that_the_plugin_refuses_are_known_from_their_config(
    model: ModelSpec, told: str | None
) -> None:
    why = eviction_unserved(model)
    assert why is None if told is None else told in (why or "")


def test_a_window_is_no_other_model_where_every_layer_has_one_already() -> None:
    assert window_pointless(shipped("mistralai/Mistral-7B-v0.1"), 4096) is not None
    assert window_pointless(shipped("mistralai/Mistral-7B-v0.1"), 2048) is None
    assert window_pointless(small(), 4096) is None
    assert window_pointless(small(LATENT), 4096) is not None
