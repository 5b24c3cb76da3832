"""The rule as an explicit mask, in fp32 and with another library: what eviction should cost.

Reads ``{"model", "tokens", "rules": [{"sinks", "window", "block", "chunk"} or null]}`` on stdin and
writes, for each rule, the log-probability of every token but the first. Tokens of a prefill chunk
see the blocks that were kept when the chunk began, and the chunk up to themselves.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import torch
from transformers import AutoModelForCausalLM


def visible(length: int, rule: dict[str, int] | None) -> torch.Tensor:
    """(query, key) whether a token sees another."""
    query, key = torch.arange(length)[:, None], torch.arange(length)[None, :]
    causal = key <= query
    if rule is None:
        return causal
    block, computed = rule["block"], query // rule["chunk"] * rule["chunk"]
    sinks = -(-rule["sinks"] // block) * block
    in_window = (key // block + 1) * block > computed - rule["window"] + 1
    return causal & ((key < sinks) | in_window)


def logprobs(model: Any, tokens: list[int], rule: dict[str, int] | None) -> list[float]:
    ids = torch.tensor([tokens])
    seen = visible(len(tokens), rule)
    mask = torch.zeros(seen.shape).masked_fill(~seen, torch.finfo(torch.float32).min)
    hidden = model.model(ids, attention_mask=mask[None, None]).last_hidden_state[0, :-1]
    found: list[float] = []
    for rows, wanted in zip(hidden.split(256), ids[0, 1:].split(256), strict=True):
        chosen = model.lm_head(rows).log_softmax(-1).gather(1, wanted[:, None])
        found += chosen[:, 0].tolist()
    return found


def main() -> None:
    asked = json.load(sys.stdin)
    model = AutoModelForCausalLM.from_pretrained(
        asked["model"], dtype=torch.float32, attn_implementation="sdpa"
    )
    with torch.inference_mode():
        told = [logprobs(model, asked["tokens"], rule) for rule in asked["rules"]]
    sys.stdout.write("\n" + json.dumps(told) + "\n")


if __name__ == "__main__":
    main()
