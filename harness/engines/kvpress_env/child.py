"""Cache bytes and perplexity of kvpress's policies at several compression ratios.

Runs in the environment of ``make kvpress`` and imports nothing of kvbench. Method: a text's first
tokens are prefilled under a policy, which drops keys and values as it goes; the bytes are those of
the storage that the cache tensors then own; the next tokens of the same text are scored against
what is left, at their original positions. Deterministic per Python version (the text is CPython's
own prose) and per version of the libraries.

Not covered: speed, retrieval, decoding under pressure, models other than the one named.
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
import pydoc_data.topics
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

#: Policies of kvpress and what each keeps.
PRESSES = {
    "StreamingLLMPress": "sinks and the most recent",
    "SnapKVPress": "what the last queries attended to",
    "ExpectedAttentionPress": "what future queries are expected to attend to",
    "ObservedAttentionPress": "what all queries attended to (as H2O does)",
    "KnormPress": "keys of small norm",
}
RATIOS = (0.5, 0.8)
#: Needs the attention weights, which only the eager implementation returns.
_EAGER = "ObservedAttentionPress"


@dataclass(frozen=True, slots=True)
class Pressed:
    """One policy at one ratio: bytes and tokens kept of one text, perplexity of each text."""

    press: str
    ratio: float
    kept_tokens: int
    cache_bytes: int
    perplexities: tuple[float, ...]


def prose(part: int) -> str:
    """Technical English that every CPython carries; parts lie far apart in it."""
    topics: dict[str, str] = pydoc_data.topics.topics
    whole = "\n\n".join(topics[key] for key in sorted(topics))
    return whole[part * 100_000 :][:40_000]


def cache_bytes(cache: Any) -> int:
    """Bytes of the storage behind the keys and values of all layers."""
    tensors = [tensor for layer in cache.layers for tensor in (layer.keys, layer.values)]
    return sum(tensor.untyped_storage().nbytes() for tensor in tensors)


def press_of(name: str, ratio: float) -> Any:
    """A policy of kvpress by its name."""
    # By name, since only the environment of `make kvpress` has it.
    return getattr(importlib.import_module("kvpress"), name)(compression_ratio=ratio)


def score(model: Any, ids: Any, prefill: int, press: Any | None) -> tuple[float, int, int]:
    """Perplexity of ``ids`` (1, tokens) behind the prefill; tokens and bytes that were kept."""
    import torch

    with torch.inference_mode():
        return _score(model, ids, prefill, press)


def _score(model: Any, ids: Any, prefill: int, press: Any | None) -> tuple[float, int, int]:
    import torch
    from transformers import DynamicCache

    cache = DynamicCache()
    if press is None:
        first = model(ids[:, :prefill], past_key_values=cache)
    else:
        with press(model):
            first = model(ids[:, :prefill], past_key_values=cache)
    kept, size = int(cache.get_seq_length()), cache_bytes(cache)
    positions = torch.arange(prefill, ids.shape[1])[None]
    rest = model(ids[:, prefill:], past_key_values=cache, position_ids=positions)
    logits = torch.cat([first.logits[:, -1:], rest.logits[:, :-1]], dim=1).float()
    wanted = ids[:, prefill:, None]
    chosen = logits.log_softmax(-1).gather(2, wanted)
    return math.exp(-float(chosen.mean())), kept, size


def measure(model: Any, texts: list[Any], prefill: int, name: str, ratio: float) -> Pressed:
    """One policy at one ratio over all texts."""
    found = [score(model, ids, prefill, press_of(name, ratio) if ratio else None) for ids in texts]
    perplexities = tuple(round(perplexity, 2) for perplexity, _, _ in found)
    return Pressed(name, ratio, found[0][1], found[0][2], perplexities)


def load(folder: str, attention: str) -> Any:
    """The model in its own dtype."""
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, dtype="auto", attn_implementation=attention)


def run(folder: str, prefill: int, scored: int) -> Iterator[Pressed]:
    """Every policy at every ratio, the uncompressed cache first, each as soon as it is measured."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    length = prefill + scored
    texts = [tokenizer(prose(part), return_tensors="pt").input_ids[:, :length] for part in range(3)]
    model = load(folder, "sdpa")
    yield measure(model, texts, prefill, "none", 0.0)
    for name in PRESSES:
        fit = load(folder, "eager") if name == _EAGER else model
        for ratio in RATIOS:
            yield measure(fit, texts, prefill, name, ratio)


_HEAD = "policy                      ratio   kept   KV MiB  perplexity of three texts"


def as_text(each: Pressed) -> str:
    """A line of a table for people."""
    told = " / ".join(f"{value:.2f}" for value in each.perplexities)
    return (
        f"{each.press:<26}  {each.ratio:>5.2f}  {each.kept_tokens:>5}  "
        f"{each.cache_bytes / 2**20:>7.1f}  {told}"
    )


def main() -> None:
    """Measure and print, line by line; ``--json`` for programs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", help="a folder in Hugging Face form")
    parser.add_argument("--prefill", type=int, default=2500, help="tokens under pressure")
    parser.add_argument("--scored", type=int, default=500, help="tokens scored behind them")
    parser.add_argument("--json", action="store_true", help="print one JSON object per line")
    asked = parser.parse_args()
    if not asked.json:
        sys.stdout.write(_HEAD + "\n")
    for each in run(asked.model, asked.prefill, asked.scored):
        sys.stdout.write((json.dumps(asdict(each)) if asked.json else as_text(each)) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
