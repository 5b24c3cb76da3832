"""A logits processor under which decoding follows a given text, token by token.

A rule that cuts a prompt once it is computed can't be seen in the prompt's own probabilities. So
the text behind a prefill is decoded: ``vllm_xargs={"forced": [token ids]}`` leaves one token to
choose at each step, and the log-probability that the engine reports is the model's own, taken
before any processor (``raw_logprobs``, its default). Loaded only where a server is told to:
``--logits-processors harness.engines.eviction.forced:ForcedTokens``.

Not covered: speculative decoding, under which steps and decoded tokens differ.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vllm.v1.sample.logits_processor import LogitsProcessor
from vllm.v1.sample.logits_processor.builtin import process_dict_updates

if TYPE_CHECKING:
    import torch

#: The token ids that a request is to follow, and those that it has decoded so far.
Row = tuple[list[int], list[int]]


def _row(params: Any, _prompt: Any, decoded: list[int]) -> Row | None:
    forced = (params.extra_args or {}).get("forced")
    return None if forced is None else (forced, decoded)


class ForcedTokens(LogitsProcessor):
    """Touches no row but those of requests that carry a text to follow."""

    def __init__(self, _config: Any, _device: torch.device, _is_pin_memory: bool) -> None:
        self._rows: dict[int, Row] = {}

    def is_argmax_invariant(self) -> bool:
        """Greedy choice follows it, too."""
        return False

    def update_state(self, batch_update: Any) -> None:
        """Keep up with requests that come, go and change places."""
        process_dict_updates(self._rows, batch_update, _row)

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        """Leave one token in each row that follows a text; ``logits`` (rows, vocabulary)."""
        for row, (forced, decoded) in self._rows.items():
            token = forced[len(decoded)]
            only = logits[row, token].clone()
            logits[row].fill_(float("-inf"))
            logits[row, token] = only
        return logits
