"""Which of a prompt's keys stay, as arithmetic on tensors: SnapKV's rule.

Method (Li et al., 2024, arXiv 2404.14469, in the form of NVIDIA's kvpress): the prompt's last
``observe`` queries attend to all keys; the attention that each earlier key draws is averaged over
these queries, smoothed along the prompt with a mean over five neighbours, and averaged over the
query heads that share the KV head. The observing tokens stay, and the keys of the highest scores
fill the rest of the budget, per KV head. Softmax in fp32, where kvpress rounds logits to the
model's dtype. Not covered: scores from earlier steps (a prompt is one step), attention with a
window, a soft cap or learned sinks.
"""

from __future__ import annotations

import torch
from torch.nn.functional import avg_pool1d

#: Neighbours over which scores are averaged; kvpress's default and that of the authors' code.
KERNEL = 5


def observed_scores(queries: torch.Tensor, keys: torch.Tensor, scale: float) -> torch.Tensor:
    """Smoothed attention that the last queries pay to each key before them.

    Args:
        queries: (observe, heads, dim) of the prompt's last tokens, rotated.
        keys: (tokens, KV heads, dim) of the whole prompt, rotated.
        scale: factor of the logits.

    Returns:
        (KV heads, tokens - observe), in fp32.
    """
    observe, heads, dim = queries.shape
    tokens, kv_heads, _ = keys.shape
    grouped = queries.float().view(observe, kv_heads, heads // kv_heads, dim).permute(1, 2, 0, 3)
    logits = grouped.flatten(1, 2) @ keys.float().permute(1, 2, 0) * scale
    logits = logits.view(kv_heads, -1, observe, tokens)
    ahead = torch.ones(observe, tokens, dtype=torch.bool).triu(tokens - observe + 1)
    weights = logits.masked_fill_(ahead, float("-inf")).softmax(-1)
    drawn = weights[..., : tokens - observe].mean(2)
    return avg_pool1d(drawn, KERNEL, stride=1, padding=KERNEL // 2).mean(1)


def chosen_positions(
    queries: torch.Tensor, keys: torch.Tensor, scale: float, kept: int, whole: int
) -> torch.Tensor:
    """Positions that stay of a prompt's whole blocks, per KV head and in their order.

    Args:
        queries: (observe, heads, dim) of the prompt's last tokens, rotated.
        keys: (tokens, KV heads, dim) of the whole prompt, rotated.
        scale: factor of the logits.
        kept: positions that stay; more than ``observe``.
        whole: tokens in whole blocks, more than ``kept``; those behind stay where they are.

    Returns:
        (KV heads, kept) positions below ``whole``, ascending.
    """
    tokens, observe = keys.shape[0], queries.shape[0]
    scores = observed_scores(queries, keys, scale)
    first_observing = min(tokens - observe, whole)
    observing = torch.arange(first_observing, whole).expand(keys.shape[1], -1)
    best = scores[:, :first_observing].topk(kept - observing.shape[1]).indices
    return torch.cat([best.sort().values, observing], dim=1)
