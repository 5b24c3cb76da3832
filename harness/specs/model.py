"""A model as the KV cache sees it, from a Hugging Face ``config.json``.

Method: the config's ``model_type`` picks the rule by which layers are laid out (``families``);
the rule returns one entry per layer that keeps a cache. A config whose type is not known is read
as a plain decoder only if nothing in it hints at another layout; otherwise it is refused, with
the fields that could not be placed. Not covered: the network (see ``harness.engines.hub``), and
caches of encoders.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from pathlib import Path
from types import MappingProxyType
from typing import Any

from harness.errors import ModelConfigError, NotFound, did_you_mean
from harness.specs.families import ATTENTION_FREE, cached_layers, draft_layers
from harness.specs.fields import Fields, readable
from harness.specs.layers import AttentionLayer, Layer, RecurrentLayer
from harness.specs.quantization import checkpoint_kv_dtype

#: The largest published config has some 100 KB.
MAX_CONFIG_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """One model: its cached layers, and what the engine derives from its config.

    ``layers`` are the target model's cached layers in order; ``draft_layers`` those that its own
    multi-token-prediction module adds when speculation is on. ``layer_count`` counts all layers.
    ``kv_cache_dtype`` is what ``auto`` resolves to: ``auto`` (the model's dtype) unless the
    checkpoint's quantisation says otherwise. ``config`` are the text model's own fields.
    """

    name: str
    model_type: str
    architecture: str | None
    layer_count: int
    heads: int
    layers: tuple[Layer, ...]
    draft_layers: tuple[Layer, ...]
    dtype: str
    max_model_len: int
    kv_cache_dtype: str
    config: Mapping[str, Any] = field(repr=False, compare=False)
    outer: Mapping[str, Any] = field(repr=False, compare=False)
    notes: tuple[str, ...] = ()

    @property
    def attention_layers(self) -> tuple[AttentionLayer, ...]:
        """The layers whose cache grows with the context."""
        return tuple(layer for layer in self.layers if isinstance(layer, AttentionLayer))

    @property
    def recurrent_layers(self) -> tuple[RecurrentLayer, ...]:
        """The layers with a fixed state per sequence."""
        return tuple(layer for layer in self.layers if isinstance(layer, RecurrentLayer))

    @property
    def is_hybrid(self) -> bool:
        """Whether recurrent layers stand beside attention layers."""
        return bool(self.recurrent_layers)

    @property
    def attention_free(self) -> bool:
        """Whether the model class has no attention, so that prefix caching is off by default."""
        return self.model_type in ATTENTION_FREE

    @property
    def uses_mla(self) -> bool:
        """Whether attention keeps one latent vector per token."""
        return any(layer.kind == "mla" for layer in self.attention_layers)


def model_spec(config: Mapping[str, Any], *, name: str) -> ModelSpec:
    """Read a config as a model.

    Args:
        config: a parsed ``config.json``; for a multimodal model the outer or the text config.
        name: what to call it in messages.

    Raises:
        ModelConfigError: a field that the KV layout needs is missing or malformed.
        UnsupportedModel: the layout is not modelled; the message names the fields.
    """
    with readable(name):
        return _spec(config, name)


def _spec(config: Mapping[str, Any], name: str) -> ModelSpec:
    fields = Fields(config, name)
    notes = () if fields.states_dtype else ("the config names no dtype: bfloat16 is assumed",)
    return ModelSpec(
        name=name,
        model_type=fields.model_type,
        architecture=fields.architecture,
        layer_count=fields.layer_count,
        heads=fields.optional_integer("num_attention_heads", "n_head", "n_heads", "num_heads") or 0,
        layers=cached_layers(fields),
        draft_layers=draft_layers(fields),
        dtype=fields.dtype,
        max_model_len=fields.max_model_len,
        kv_cache_dtype=checkpoint_kv_dtype(fields),
        config=MappingProxyType(fields.config),
        outer=MappingProxyType(dict(config)),
        notes=notes,
    )


@cache
def _shipped() -> Mapping[str, tuple[str, Mapping[str, Any]]]:
    text = files("harness.data").joinpath("models.json").read_text(encoding="utf-8")
    return MappingProxyType(
        {name.lower(): (name, config) for name, config in json.loads(text).items()}
    )


def shipped_names() -> tuple[str, ...]:
    """Hugging Face ids of the models whose architecture fields come with the package."""
    return tuple(name for name, _ in _shipped().values())


def shipped_config(name: str) -> Mapping[str, Any] | None:
    """Architecture fields that ship with the package, by Hugging Face id in any case.

    The part after the slash is enough where it is unambiguous. None if the model isn't there.
    """
    table = _shipped()
    if (found := table.get(name.lower())) is not None:
        return MappingProxyType(dict(found[1]))
    tails = [entry for key, entry in table.items() if key.rpartition("/")[2] == name.lower()]
    return MappingProxyType(dict(tails[0][1])) if len(tails) == 1 else None


def read_config(path_or_name: str | Path) -> Mapping[str, Any]:
    """Read ``config.json`` from a file or folder, or take the shipped fields of a model.

    Raises:
        NotFound: neither a file nor a shipped model; the nearest shipped names are offered.
        ModelConfigError: the file isn't a JSON object.
    """
    path = Path(path_or_name)
    try:
        is_folder = path.is_dir()
        file = path / "config.json" if is_folder else path
        if file.is_file():
            return _parse(file)
    except (OSError, ValueError):
        # No file can have that name (too long), or we may not look there.
        is_folder = False
    if is_folder:
        raise NotFound("the folder holds no config.json", where=str(path))
    if (config := shipped_config(str(path_or_name))) is not None:
        return config
    raise NotFound(
        f"no model {str(path_or_name)!r}: neither a file, nor shipped with kvbench",
        next_move=did_you_mean(str(path_or_name), shipped_names())
        or "pass the path of a config.json, or a Hugging Face id that can be reached",
    )


def _parse(file: Path) -> Mapping[str, Any]:
    try:
        with file.open("rb") as opened:
            raw = opened.read(MAX_CONFIG_BYTES + 1)
        if len(raw) > MAX_CONFIG_BYTES:
            raise ModelConfigError(
                f"the file has more than {MAX_CONFIG_BYTES:,} bytes, the most of a config",
                where=str(file),
            )
        config = json.loads(raw.decode("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ModelConfigError(f"not readable as JSON: {error}", where=str(file)) from error
    if not isinstance(config, dict):
        raise ModelConfigError("a model config must be a JSON object", where=str(file))
    return config
