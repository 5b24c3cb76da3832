"""Asks the embedded model a question and scores 100 tokens of it; a child of the tests.

Takes the model's folder, prints one line of JSON: what ``RealModel`` of the conftest holds.
"""

from __future__ import annotations

import json
import math
import sys
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from harness.engines.kvpress_env import child


def main() -> None:
    """Ask and score."""
    folder = sys.argv[1]
    model = AutoModelForCausalLM.from_pretrained(folder)
    told = {"dtype": str(model.dtype), "capital": capital(folder, model), **scored(folder)}
    sys.stdout.write("\n" + json.dumps(told) + "\n")


def capital(folder: str, model: Any) -> str:
    """The answer to a question that a whole model knows."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    ask = [{"role": "user", "content": "What is the capital of France?"}]
    ids = tokenizer.apply_chat_template(ask, add_generation_prompt=True, return_tensors="pt")
    ids = ids if isinstance(ids, torch.Tensor) else ids["input_ids"]
    out = model.generate(ids, max_new_tokens=12, do_sample=False)
    return tokenizer.decode(out[0, ids.shape[1] :], skip_special_tokens=True)


def scored(folder: str) -> dict[str, float]:
    """Perplexity of the last 40 of 100 tokens, in one pass and behind a prefill of 60."""
    model = child.load(folder, "sdpa")
    ids = torch.arange(1000, 1100)[None]
    with torch.inference_mode():
        rows = model(ids).logits[0, 59:-1].float().log_softmax(-1)
    whole = math.exp(-float(rows.gather(1, ids[0, 60:, None]).mean()))
    cached, kept, size = child.score(model, ids, 60, None)
    return {"whole": whole, "cached": cached, "kept_tokens": kept, "kept_bytes": size}


if __name__ == "__main__":
    main()
