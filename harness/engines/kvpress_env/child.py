"""Cache bytes and perplexity of kvpress's policies at several compression ratios.

    child.py MODEL     prints a table of all policies over three texts
    child.py --serve   settings and prompts as JSON lines on stdin (engines/kvpress.py)

Runs in the environment of ``make kvpress`` and imports nothing of kvbench. Method: a text's first
tokens are prefilled under a policy, which drops keys and values as it goes; the bytes are those of
the storage that the cache tensors then own; the next tokens of the same text are scored against
what is left, at their original positions. The model is loaded once; the one policy that needs the
attention weights has the same model switched to the implementation that returns them. The table is
deterministic per Python version (the text is CPython's own prose) and per version of the libraries.

Not covered: speed, retrieval, decoding under pressure.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib
import json
import math
import os
import pydoc_data.topics
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import IO, Any

#: Policies of kvpress and what each keeps.
PRESSES = {
    "StreamingLLMPress": "sinks and the most recent",
    "SnapKVPress": "what the last queries attended to",
    "ExpectedAttentionPress": "what future queries are expected to attend to",
    "ObservedAttentionPress": "what all queries attended to (as H2O does)",
    "KnormPress": "keys of small norm",
}
#: The same by the names that scenarios use; none compresses nothing.
NAMES = {
    "none": None,
    "streaming_llm": "StreamingLLMPress",
    "snapkv": "SnapKVPress",
    "expected_attention": "ExpectedAttentionPress",
    "observed_attention": "ObservedAttentionPress",
    "knorm": "KnormPress",
}
RATIOS = (0.5, 0.8)
#: The likeliest tokens that are listed at each position, as vLLM lists them.
TOP_K = 20
_PR_SET_PDEATHSIG = 1
#: Needs the attention weights, which only the eager implementation returns.
_EAGER = "ObservedAttentionPress"


@dataclass(frozen=True, slots=True)
class PolicyRow:
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
    logits, kept, size = behind(model, ids, prefill, press)
    wanted = ids[:, prefill:, None]
    chosen = logits.log_softmax(-1).gather(2, wanted)
    return math.exp(-float(chosen.mean())), kept, size


def behind(model: Any, ids: Any, prefill: int, press: Any | None) -> tuple[Any, int, int]:
    """Logits for each token behind the prefill, as seen by what the policy left of it.

    Returns fp32 logits (1, tokens − prefill, vocabulary), the tokens kept and their bytes. The
    first of them comes from the prefill's last position, before anything is dropped.
    """
    import torch
    from transformers import DynamicCache

    cache = DynamicCache()
    if press is None:
        first = model(ids[:, :prefill], past_key_values=cache, logits_to_keep=1)
    else:
        with press(model):
            first = model(ids[:, :prefill], past_key_values=cache, logits_to_keep=1)
    kept, size = int(cache.get_seq_length()), cache_bytes(cache)
    positions = torch.arange(prefill, ids.shape[1], device=ids.device)[None]
    rest = model(ids[:, prefill:], past_key_values=cache, position_ids=positions)
    return torch.cat([first.logits[:, -1:], rest.logits[:, :-1]], dim=1).float(), kept, size


def measure(model: Any, texts: list[Any], prefill: int, name: str, ratio: float) -> PolicyRow:
    """One policy at one ratio over all texts."""
    found = [score(model, ids, prefill, press_of(name, ratio) if ratio else None) for ids in texts]
    perplexities = tuple(round(perplexity, 2) for perplexity, _, _ in found)
    return PolicyRow(name, ratio, found[0][1], found[0][2], perplexities)


def load(folder: str, attention: str) -> Any:
    """The model in its own dtype."""
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, dtype="auto", attn_implementation=attention)


def run(folder: str, prefill: int, scored: int) -> Iterator[PolicyRow]:
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


# --- asked by kvbench -----------------------------------------------------------------------------


def listed(row: Any, token: int) -> dict[str, Any]:
    """One position's fp32 logits: what ``token`` is worth, its rank, and the likeliest tokens.

    As vLLM lists them: natural logarithms, ranks from 1, the token itself last if it is not
    among the likeliest.
    """
    scores = row.log_softmax(-1)
    own = float(scores[token])
    top = scores.topk(min(TOP_K, scores.shape[-1]))
    ids, values = top.indices.tolist(), top.values.tolist()
    if token not in ids:
        ids, values = [*ids, token], [*values, own]
    rank = 1 + int((scores > scores[token]).sum())
    return {"logprob": own, "rank": rank, "top_ids": ids, "top_logprobs": values}


def answer(model: Any, request: dict[str, Any]) -> dict[str, Any]:
    """Score the asked positions of one prompt, all of them behind its prefill."""
    import torch

    began = time.monotonic()
    name = NAMES[request["press"]]
    model.set_attn_implementation("eager" if name == _EAGER else "sdpa")
    press = None if name is None else press_of(name, request["compression_ratio"])
    ids = torch.tensor([request["tokens"]], device=model.device)
    with torch.inference_mode():
        logits, kept, size = behind(model, ids, request["prefill"], press)
        rows = [
            listed(logits[0, place - request["prefill"]], request["tokens"][place])
            for place in request["positions"]
        ]
    return {
        "done": request["index"],
        "kept_tokens": kept,
        "cache_bytes": size,
        "took_s": time.monotonic() - began,
        "logprobs": [row["logprob"] for row in rows],
        "ranks": [row["rank"] for row in rows],
        "top_ids": [row["top_ids"] for row in rows],
        "top_logprobs": [row["top_logprobs"] for row in rows],
    }


def facts(model: Any) -> dict[str, Any]:
    """What was loaded, as libraries and tensors tell it."""
    from importlib.metadata import version

    return {
        "kvpress": version("kvpress"),
        "transformers": version("transformers"),
        "torch": version("torch"),
        "dtype": str(model.dtype).removeprefix("torch."),
        "device": str(model.device),
    }


def serve(requests: IO[str], events: IO[str]) -> None:
    """Load what the first line names, then answer a line each until the input ends."""

    def tell(event: dict[str, Any]) -> None:
        events.write(json.dumps(event) + "\n")
        events.flush()

    settings = json.loads(requests.readline())
    model = load(settings["model"], "sdpa").to(settings["device"]).eval()
    tell({"ready": facts(model)})
    for line in requests:
        request = json.loads(line)
        try:
            tell(answer(model, request))
        except (RuntimeError, ValueError, IndexError, AssertionError) as error:
            tell({"failed": request["index"], "error": f"{type(error).__name__}: {error}"})


def serve_parent() -> None:
    """Serve whoever started this process, and end with it."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    events = os.fdopen(os.dup(1), "w", encoding="utf-8")
    # Whatever libraries print goes to the log instead.
    os.dup2(2, 1)
    serve(sys.stdin, events)


# --- the table ------------------------------------------------------------------------------------

_HEAD = "policy                      ratio   kept   KV MiB  perplexity of three texts"


def as_text(each: PolicyRow) -> str:
    """A line of a table for people."""
    told = " / ".join(f"{value:.2f}" for value in each.perplexities)
    return (
        f"{each.press:<26}  {each.ratio:>5.2f}  {each.kept_tokens:>5}  "
        f"{each.cache_bytes / 2**20:>7.1f}  {told}"
    )


def main(words: Sequence[str]) -> None:
    """Measure and print, line by line; ``--json`` for programs."""
    if list(words) == ["--serve"]:
        serve_parent()
        return
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", help="a folder in Hugging Face form")
    parser.add_argument("--prefill", type=int, default=2500, help="tokens under pressure")
    parser.add_argument("--scored", type=int, default=500, help="tokens scored behind them")
    parser.add_argument("--json", action="store_true", help="print one JSON object per line")
    asked = parser.parse_args(words)
    if not asked.json:
        sys.stdout.write(_HEAD + "\n")
    for each in run(asked.model, asked.prefill, asked.scored):
        sys.stdout.write((json.dumps(asdict(each)) if asked.json else as_text(each)) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
