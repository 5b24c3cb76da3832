"""Stands in for NVIDIA's kvpress, which needs a transformers of its own: one policy, the real seam.

As the original does, a press is a context manager that hooks every attention layer and prunes the
layer's keys and values once the prefill has passed through it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class StreamingLLMPress:
    """Keeps the first four tokens and the most recent ones."""

    def __init__(self, compression_ratio: float) -> None:
        self.compression_ratio = compression_ratio

    @contextmanager
    def __call__(self, model: Any) -> Iterator[None]:
        hooks = [
            layer.self_attn.register_forward_hook(self._prune, with_kwargs=True)
            for layer in model.model.layers
        ]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def _prune(self, module: Any, _given: Any, words: Any, _output: Any) -> None:
        import torch

        layer = words["past_key_values"].layers[module.layer_idx]
        tokens = layer.keys.shape[2]
        kept = int(tokens * (1 - self.compression_ratio))
        places = torch.tensor([*range(4), *range(tokens - kept + 4, tokens)])
        layer.keys = layer.keys[:, :, places].contiguous()
        layer.values = layer.values[:, :, places].contiguous()
