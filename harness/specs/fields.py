"""Reads a Hugging Face ``config.json`` under the many names that the same fact goes by.

Method: the text model's fields are lifted out of a multimodal config, then each fact is looked up
under its aliases in the order in which the engine does. Source: vLLM 0.32.0,
``transformers_utils/model_arch_config_convertor.py``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from harness.errors import ModelConfigError

#: Where a multimodal config keeps its language model.
_NESTED = ("text_config", "llm_config", "language_config", "thinker_config", "text_model_config")
#: What the outer config may say on behalf of the language model.
_OUTER = (
    "architectures",
    "dtype",
    "torch_dtype",
    "quantization_config",
    "compression_config",
    "tie_word_embeddings",
)

_LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
_HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads")
_HIDDEN = ("hidden_size", "n_embd", "d_model", "hidden_dim")
_KV_HEADS = (
    "n_head_kv",
    "num_kv_heads",
    "num_key_value_heads",
    "multi_query_group_num",
    "num_attention_groups",
)
_HEAD_DIM = ("head_dim", "hidden_size_per_head", "attention_head_dim", "kv_channels")
_LENGTH = (
    "max_position_embeddings",
    "n_positions",
    "max_seq_len",
    "seq_length",
    "max_target_positions",
    "max_sequence_length",
    "max_seq_length",
    "seq_len",
)
#: RoPE variants whose ``max_position_embeddings`` already is the stretched length.
_ALREADY_SCALED = frozenset(
    {"su", "longrope", "llama3", "yarn", "deepseek_yarn", "deepseek_llama_scaling", "default"}
)
_DEFAULT_LENGTH = 2048


class Fields:
    """The text model's fields of one config, with the aliases resolved.

    Raises ``ModelConfigError`` from every reader whose fact is missing or not a number.
    """

    __slots__ = ("config", "name", "outer")

    def __init__(self, config: Mapping[str, Any], name: str) -> None:
        if not isinstance(config, Mapping):
            raise ModelConfigError("a model config must be a JSON object", where=name)
        self.name = name
        self.outer = config
        self.config = text_fields(config)

    def get(self, key: str, default: Any = None) -> Any:
        """The field, or ``default`` where it is missing or null."""
        value = self.config.get(key)
        return default if value is None else value

    def flag(self, key: str) -> bool:
        """Whether a boolean field is set."""
        return bool(self.config.get(key))

    def integer(self, *keys: str) -> int:
        """The first of ``keys`` that is present, as a positive whole number."""
        value = self.optional_integer(*keys)
        if value is None:
            raise ModelConfigError(
                f"no {keys[0]} in the config",
                where=self.name,
                next_move=f"add one of: {', '.join(keys)}",
            )
        return value

    def optional_integer(self, *keys: str) -> int | None:
        """The first of ``keys`` that is present and not null; None if there is none."""
        for key in keys:
            value = self.config.get(key)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                raise ModelConfigError(f"{key} is {value!r}, not a whole number", where=self.name)
            return value
        return None

    @property
    def model_type(self) -> str:
        """``model_type`` of the text model, empty where the config has none."""
        return str(self.get("model_type", ""))

    @property
    def architecture(self) -> str | None:
        """The first of ``architectures``."""
        names = self.get("architectures", ())
        return str(names[0]) if isinstance(names, list | tuple) and names else None

    @property
    def layer_count(self) -> int:
        """Layers of the model, those without a cache included."""
        count = self.optional_integer(*_LAYERS)
        if count is None and (spelled := self._spelled_layers()):
            return spelled
        count = self.integer(*_LAYERS)
        if count == 0:
            raise ModelConfigError("num_hidden_layers is 0", where=self.name)
        return count

    def _spelled_layers(self) -> int:
        """Some configs list or spell their layers and state no count."""
        for key in ("layers_block_type", "hybrid_override_pattern", "block_configs"):
            if isinstance(found := self.get(key), list | str):
                return len(found)
        return 0

    @property
    def heads(self) -> int:
        """Query heads."""
        return self.integer(*_HEADS)

    @property
    def hidden_size(self) -> int:
        """Width of the residual stream."""
        return self.integer(*_HIDDEN)

    @property
    def kv_heads(self) -> int:
        """KV heads of the whole model; as many as query heads where nothing says otherwise."""
        found = self.optional_integer(*_KV_HEADS)
        return self.heads if found is None else found

    @property
    def head_dim(self) -> int:
        """Elements of one head: stated, or hidden size over query heads."""
        for key in _HEAD_DIM:
            if value := self.optional_integer(key):
                return value
        heads = self.heads
        if heads == 0 or self.hidden_size % heads:
            raise ModelConfigError(
                f"hidden_size {self.hidden_size} is no multiple of {heads} heads",
                where=self.name,
                next_move="add head_dim to the config",
            )
        return self.hidden_size // heads

    @property
    def dtype(self) -> str:
        """The model's dtype with ``--dtype auto``: float32 checkpoints are served in bfloat16."""
        stated = self.get("dtype") or self.get("torch_dtype")
        if stated is None:
            return "bfloat16"
        name = str(stated).removeprefix("torch.")
        return "bfloat16" if name == "float32" else name

    @property
    def states_dtype(self) -> bool:
        """Whether the config names a dtype at all."""
        return bool(self.get("dtype") or self.get("torch_dtype"))

    @property
    def max_model_len(self) -> int:
        """The context length that the engine derives when none is given."""
        if (stated := self.optional_integer("model_max_length")) is not None:
            return stated
        lengths = [n for key in _LENGTH if (n := self.optional_integer(key)) is not None]
        if not lengths:
            return _DEFAULT_LENGTH
        return self._stretched(min(lengths))

    def _stretched(self, length: int) -> int:
        scalings = list(self._rope_scalings())
        if any(_rope_type(scaling) == "longrope" for scaling in scalings):
            return self.optional_integer("original_max_position_embeddings") or length
        if "gemma3" in self.model_type:
            return length
        factor = 1.0
        for scaling in scalings:
            if _rope_type(scaling) not in _ALREADY_SCALED:
                factor = float(scaling.get("factor") or factor)
        return int(length * factor)

    def _rope_scalings(self) -> Iterable[Mapping[str, Any]]:
        for key in ("rope_scaling", "rope_parameters"):
            found = self.get(key)
            if not isinstance(found, Mapping):
                continue
            nested = [value for value in found.values() if isinstance(value, Mapping)]
            yield from nested or [found]


def _rope_type(scaling: Mapping[str, Any]) -> str:
    return str(scaling.get("rope_type") or scaling.get("type") or "default")


def text_fields(config: Mapping[str, Any]) -> dict[str, Any]:
    """Lift the language model's fields out of a multimodal config; a flat config stays as it is."""
    for key in _NESTED:
        nested = config.get(key)
        if isinstance(nested, Mapping):
            inner = text_fields(nested)
            kept = {name: config[name] for name in _OUTER if config.get(name) is not None}
            return {**kept, **{name: value for name, value in inner.items() if value is not None}}
    return dict(config)
