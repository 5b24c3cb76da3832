"""Which token ids may stand in a prompt: ordinary ones only, far from special tokens.

Method: tokenizers put their special, control and byte tokens at the ends of the vocabulary, so
the range keeps clear of both, and of every id that the model's ``config.json`` names
(``bos_token_id``, ``eos_token_id``, ``image_token_id`` …). A range of about 20,000 ids is
enough to make prompts unique, and small enough to lie inside any usual vocabulary.

Not covered: special tokens that only the tokenizer's files name and that lie in the middle of
the vocabulary; no tokenizer is read here.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from harness.errors import ModelConfigError


@dataclass(frozen=True, slots=True)
class TokenRange:
    """Token ids that are safe to send as a prompt: ``first`` to ``last``, both included."""

    first: int
    last: int

    def __post_init__(self) -> None:
        if not 0 <= self.first <= self.last:
            raise ValueError(f"no token range: {self.first} to {self.last}")

    def __len__(self) -> int:
        return self.last - self.first + 1


#: Where nothing is known of the model: inside every usual vocabulary (32,000 ids and more).
SAFE_TOKENS = TokenRange(1000, 20_000)

# The part left out at either end of a vocabulary that is too small for SAFE_TOKENS.
_MARGIN = 8


def token_range(model_config: Mapping[str, Any] | None) -> TokenRange:
    """Return the ids to draw prompts from, given a model's ``config.json`` (None: unknown).

    Raises:
        ModelConfigError: the vocabulary holds no ordinary ids between its special ones.
    """
    if model_config is None:
        return SAFE_TOKENS
    text = model_config.get("text_config")
    configs = [model_config, *([text] if isinstance(text, Mapping) else [])]
    sizes = [c["vocab_size"] for c in configs if isinstance(c.get("vocab_size"), int)]
    first, last = _inner(min(sizes)) if sizes else (SAFE_TOKENS.first, SAFE_TOKENS.last)
    special = sorted({i for config in configs for i in _special_ids(config) if first <= i <= last})
    edges = [first - 1, *special, last + 1]
    gaps = [(right - left - 1, left + 1) for left, right in itertools.pairwise(edges)]
    length, start = max(gaps, key=lambda gap: gap[0])
    if length < 1:
        raise ModelConfigError(
            "no ordinary token ids are left to build prompts from",
            where="config.json: vocab_size",
            next_move="check vocab_size and the *_token_id fields of the model's config.json",
        )
    return TokenRange(start, start + length - 1)


def _inner(vocab_size: int) -> tuple[int, int]:
    margin = vocab_size // _MARGIN
    return (
        min(SAFE_TOKENS.first, margin),
        min(SAFE_TOKENS.last, vocab_size - margin - 1),
    )


def _special_ids(config: Mapping[str, Any]) -> Iterator[int]:
    for key, value in config.items():
        if key.endswith(("_token_id", "_token_index")):
            for item in value if isinstance(value, list) else [value]:
                if isinstance(item, int):
                    yield item
