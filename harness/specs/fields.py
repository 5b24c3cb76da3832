"""Reads a Hugging Face ``config.json`` under the many names that the same fact goes by.

Method: the text model's fields are lifted out of a multimodal config, then each fact is looked up
under its aliases in the order in which the engine does. Source: vLLM 0.32.0,
``transformers_utils/model_arch_config_convertor.py``. Every number, list and section is checked
for its form when it is read, since a config may come from anywhere; what slips through is told as
a fault of the config (``readable``), never as a stack trace.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
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
#: Far beyond any model; what is larger would only fill the memory or leave the range of floats.
MOST_LAYERS = 100_000
#: Draft tokens per step: far beyond what any engine gains by.
MOST_DRAFTS = 1024
_MOST = 1 << 48


@contextmanager
def readable(name: str) -> Iterator[None]:
    """Tell a config of unforeseen form as such; ``name`` is what messages call the model.

    Raises:
        ModelConfigError: instead of the error that a malformed field led to.
    """
    try:
        yield
    except (TypeError, ValueError, AttributeError, ArithmeticError, LookupError) as error:
        raise ModelConfigError(
            "a field of the config has a form that no model has",
            where=name,
            evidence=f"{type(error).__name__}: {str(error)[:200]}",
            next_move="compare it with the model's published config.json",
        ) from error


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
            return self.whole(key, value)
        return None

    def whole(self, key: str, value: object, least: int = 0, most: int = _MOST) -> int:
        """``value``, which was found under ``key``, as a whole number within its limits."""
        number = isinstance(value, int) and not isinstance(value, bool)
        if number and isinstance(value, int) and least <= value <= most:
            return value
        legal = f"{least} to {most}" if most < _MOST else f"{least} up"
        fault = "out of range" if number else "not a whole number"
        raise self._fault(key, value, fault, f"a whole number from {legal}")

    def number(self, key: str, default: float) -> float:
        """A factor: above 0 and finite; ``default`` where the field is missing or null."""
        return self.factor(key, self.get(key, default))

    def factor(self, key: str, value: object) -> float:
        """``value``, which was found under ``key``, as a factor above 0."""
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if number and isinstance(value, int | float) and 0 < value <= _MOST:
            return float(value)
        raise self._fault(key, value, "no factor", "a number above 0")

    def section(self, key: str) -> Mapping[str, Any]:
        """The fields that stand together under ``key``; empty where it is missing or null."""
        found = self.get(key, {})
        if not isinstance(found, Mapping):
            raise self._fault(key, found, "no section", "a JSON object")
        return found

    def listed(self, key: str) -> Sequence[Any] | None:
        """The list under ``key``; None where it is missing or null."""
        found = self.get(key)
        if found is not None and not isinstance(found, list | tuple):
            raise self._fault(key, found, "no list", "a JSON array")
        return found

    def places(self, key: str, found: object) -> frozenset[int]:
        """``found``, which was found under ``key``, as a list of layer numbers."""
        if not isinstance(found, list | tuple):
            raise self._fault(key, found, "no list", "a JSON array of layer numbers")
        return frozenset(self.whole(key, place, most=MOST_LAYERS) for place in found)

    def _fault(self, key: str, value: object, fault: str, legal: str) -> ModelConfigError:
        return ModelConfigError(f"{key} is {value!r:.60}, {fault}", where=self.name, legal=[legal])

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
        return self.whole("num_hidden_layers", self.integer(*_LAYERS), 1, MOST_LAYERS)

    def further_layers(self, *keys: str) -> int:
        """Layers beside the model's own, such as draft layers; 0 where none are stated."""
        return self.whole(keys[0], self.optional_integer(*keys) or 0, most=MOST_LAYERS)

    def _spelled_layers(self) -> int:
        """Some configs list or spell their layers and state no count."""
        for key in ("layers_block_type", "hybrid_override_pattern", "block_configs"):
            if isinstance(found := self.get(key), list | str):
                return self.whole(f"the length of {key}", len(found), most=MOST_LAYERS)
        return 0

    @property
    def heads(self) -> int:
        """Query heads."""
        return self.whole("num_attention_heads", self.integer(*_HEADS), 1)

    @property
    def hidden_size(self) -> int:
        """Width of the residual stream."""
        return self.integer(*_HIDDEN)

    @property
    def kv_heads(self) -> int:
        """KV heads of the whole model; as many as query heads where nothing says otherwise."""
        found = self.optional_integer(*_KV_HEADS)
        return self.heads if found is None else self.grouped("num_key_value_heads", found)

    def grouped(self, key: str, count: object, heads: int | None = None) -> int:
        """``count``, found under ``key``, as KV heads that query heads share in equal groups.

        ``heads`` are the query heads where a kind of layer has its own number of them.
        """
        queries = heads or self.optional_integer(*_HEADS)
        found = self.whole(key, count, 1)
        if queries and queries % found:
            raise ModelConfigError(
                f"{key} is {found}: so many KV heads do not divide {queries} query heads",
                where=self.name,
                legal=[str(n) for n in range(1, min(queries, 4096) + 1) if queries % n == 0],
            )
        return found

    @property
    def head_dim(self) -> int:
        """Elements of one head: stated, or hidden size over query heads."""
        for key in _HEAD_DIM:
            if value := self.optional_integer(key):
                return value
        heads = self.heads
        if self.hidden_size < heads or self.hidden_size % heads:
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
            return self.whole("model_max_length", stated, 1)
        lengths = {key: n for key in _LENGTH if (n := self.optional_integer(key)) is not None}
        if not lengths:
            return _DEFAULT_LENGTH
        shortest = min(lengths, key=lambda key: lengths[key])
        stretched = self._stretched(self.whole(shortest, lengths[shortest], 1))
        return self.whole(f"{shortest} with its rope_scaling", stretched, 1)

    def _stretched(self, length: int) -> int:
        scalings = list(self._rope_scalings())
        if any(_rope_type(scaling) == "longrope" for scaling in scalings):
            return self.optional_integer("original_max_position_embeddings") or length
        if "gemma3" in self.model_type:
            return length
        factor = 1.0
        for scaling in scalings:
            if _rope_type(scaling) not in _ALREADY_SCALED:
                stated = scaling.get("factor")
                factor = factor if stated is None else self.factor("rope_scaling.factor", stated)
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
