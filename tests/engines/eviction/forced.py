"""A logits processor under which decoding follows a given text; vLLM loads it into its worker.

Perplexity by ``prompt_logprobs`` is of prefill alone, computed before a prompt is cut. Here
each decoded token is forced to be the text's next one, by ``vllm_xargs={"forced": [ids]}``, and the
log-probability that the engine tells of it is the model's own, taken before any logits processor
(``logprobs_mode=raw_logprobs``, the default): teacher forcing on the cut cache, token by token.
"""

from __future__ import annotations

from typing import Any

import torch
from vllm.v1.sample.logits_processor import LogitsProcessor
from vllm.v1.sample.logits_processor.builtin import process_dict_updates

Following = tuple[list[int], list[int]]


def _following(params: Any, _prompt: Any, decoded: list[int]) -> Following | None:
    forced = (params.extra_args or {}).get("forced")
    return None if forced is None else (forced, decoded)


class ForcedTokens(LogitsProcessor):
    """Leaves one token to choose from in rows that follow a text."""

    def __init__(self, vllm_config: Any, device: torch.device, is_pin_memory: bool) -> None:
        self._rows: dict[int, Following] = {}

    def is_argmax_invariant(self) -> bool:
        return False

    def update_state(self, batch_update: Any) -> None:
        process_dict_updates(self._rows, batch_update, _following)

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        for row, (forced, decoded) in self._rows.items():
            wanted = forced[len(decoded)]
            chosen = logits[row, wanted].clone()
            logits[row] = float("-inf")
            logits[row, wanted] = chosen
        return logits
