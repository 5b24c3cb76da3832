"""Does a sliding window cap what a request keeps?

Method: by theory a request of a windowed layer holds at its worst moment the window and the
tokens of the steps in flight, in whole blocks and one more, however long it is
(``theory.kv.blocks_of_request``). Measured is the largest number of blocks per running request
over the readings of the load (``request_blocks``).

Not covered: what is lost beyond the window, which is a question of quality; models that mix
windowed and full layers, whose blocks are of both kinds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from harness.analysis.request_blocks import blocks_per_running_request
from harness.analysis.results import TrialAnalysis
from harness.record import TrialRecord
from harness.units import Bytes, Tokens


@dataclass(frozen=True, slots=True)
class WindowResult:
    """One variant's blocks per request; ``window_tokens`` None is full attention."""

    variant: str
    window_tokens: Tokens | None
    length_tokens: Tokens
    block_size: Tokens
    block_bytes: Bytes
    predicted_blocks: int
    measured_blocks: float | None

    @property
    def holds(self) -> bool | None:
        """Whether the measured blocks stay within the predicted ones."""
        if self.measured_blocks is None:
            return None
        return self.measured_blocks <= self.predicted_blocks


def window_results(
    trials: Sequence[TrialAnalysis], records: Sequence[TrialRecord]
) -> tuple[WindowResult, ...]:
    """The first sealed trial of each variant, if any variant has a window set by the scenario."""
    by_id = {record.run.trial.trial_id: record for record in records}
    found: dict[str, WindowResult] = {}
    for trial in trials:
        record = by_id[trial.trial_id]
        if trial.status == "sealed" and trial.variant not in found:
            made = _window_result(trial, record)
            if made is not None:
                found[trial.variant] = made
    return tuple(found.values()) if any(c.window_tokens for c in found.values()) else ()


def _window_result(trial: TrialAnalysis, record: TrialRecord) -> WindowResult | None:
    overrides = record.run.trial.server_flags.get("hf_overrides")
    theory, size = trial.theory, trial.granted.block_size
    if not isinstance(overrides, dict) or "sliding_window" not in overrides:
        return None
    if theory is None or not theory.blocks_per_request or not theory.kv_bytes_per_request:
        return None
    if not size or not trial.granted.num_blocks:
        return None
    return WindowResult(
        variant=trial.variant,
        window_tokens=overrides["sliding_window"],
        length_tokens=trial.workload["context_tokens"] + trial.workload["output_tokens"],
        block_size=size,
        block_bytes=theory.kv_bytes_per_request // theory.blocks_per_request,
        predicted_blocks=theory.blocks_per_request,
        measured_blocks=blocks_per_running_request(record, trial.granted.num_blocks),
    )
