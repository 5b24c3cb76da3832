"""Is a shared prefix stored once? Blocks in use and hit tokens, beside the prediction.

Method: ``theory.prefix`` says how many blocks the requests in flight hold with and without
sharing; the engine's gauge at its peak × its blocks is a whole number to be held against that.

Hits: the warm-ups carry the prefix too, so that every measured request finds it; without a
warm-up the first one would compute it. A prompt's last token is always computed. Not covered:
models with windows or states, whose groups share blocks by rules of their own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harness.analysis.metrics import measured, phase
from harness.analysis.results import TrialAnalysis
from harness.analysis.series import series, total
from harness.record import TrialRecord
from harness.specs.eviction import VARIABLE
from harness.specs.pool import blocks_in_use, usable_blocks
from harness.theory.prefix import blocks_held, hit_tokens, requests_held, shared_blocks
from harness.units import Tokens


@dataclass(frozen=True, slots=True)
class Sharing:
    """One trial with a shared prefix: blocks at the peak and tokens that were not computed."""

    variant: str
    trial_id: str
    workload_label: str
    repeat: int
    caching: bool
    prefix_tokens: Tokens
    prompt_tokens: Tokens
    block_size: Tokens
    shared_blocks: int
    blocks_per_request: int
    requests: int
    predicted_blocks: int
    measured_blocks: int | None
    predicted_hit_tokens: Tokens
    measured_hit_tokens: Tokens | None

    @property
    def unshared_blocks(self) -> int:
        """Blocks that as many requests would hold if each stored its own."""
        return blocks_held(self.requests, self.blocks_per_request)

    @property
    def exact(self) -> bool | None:
        """Whether blocks and hits are just as predicted; None where one of them is unknown."""
        if self.measured_blocks is None or self.measured_hit_tokens is None:
            return None
        return (self.measured_blocks, self.measured_hit_tokens) == (
            self.predicted_blocks,
            self.predicted_hit_tokens,
        )


def sharings(
    trials: Sequence[TrialAnalysis], records: Sequence[TrialRecord]
) -> tuple[Sharing, ...]:
    """Every sealed trial whose prompts share a prefix."""
    by_id = {record.run.trial.trial_id: record for record in records}
    made = (
        _sharing(trial, by_id[trial.trial_id])
        for trial in trials
        if trial.status == "sealed" and trial.workload.get("shared_prefix_tokens")
    )
    return tuple(sharing for sharing in made if sharing is not None)


def other_settings(record: TrialRecord) -> str:
    """What a server was started with but prefix caching, as a key."""
    trial, server = record.run.trial, record.run.server
    rule = server.env.get(VARIABLE) if server is not None else None
    flags = {k: v for k, v in trial.server_flags.items() if k != "enable_prefix_caching"}
    return repr((sorted(flags.items()), rule, trial.model, trial.stamp))


def _sharing(trial: TrialAnalysis, record: TrialRecord) -> Sharing | None:
    size, blocks = trial.granted.block_size, trial.granted.num_blocks
    share = trial.summary.kv_usage_peak if trial.summary is not None else None
    if not size or not blocks:
        return None
    load = trial.workload
    caching = _caches(record)
    prefix, length = load["shared_prefix_tokens"], load["context_tokens"] + load["output_tokens"]
    common = shared_blocks(prefix, size) if caching else 0
    each = -(-length // size)
    held = requests_held(_sent(load), usable_blocks(blocks), each, common)
    warm = load["num_prompts"] if load["warmup_requests"] else load["num_prompts"] - 1
    return Sharing(
        variant=trial.variant,
        trial_id=trial.trial_id,
        workload_label=trial.workload_label,
        repeat=trial.repeat,
        caching=caching,
        prefix_tokens=prefix,
        prompt_tokens=load["context_tokens"],
        block_size=size,
        shared_blocks=common,
        blocks_per_request=each,
        requests=held,
        predicted_blocks=blocks_held(held, each, common),
        measured_blocks=blocks_in_use(share, blocks),
        predicted_hit_tokens=hit_tokens(warm, common, size),
        measured_hit_tokens=_hits(record),
    )


def _sent(load: Mapping[str, Any]) -> int:
    """The most requests that the load has on their way at once."""
    return int(min(load.get("concurrency") or load["num_prompts"], load["num_prompts"]))


def _caches(record: TrialRecord) -> bool:
    server = record.run.server
    told = server.granted.enable_prefix_caching if server is not None else None
    asked = record.run.trial.server_flags.get("enable_prefix_caching", True)
    return bool(asked) if told is None else told


def _hits(record: TrialRecord) -> Tokens | None:
    """Prompt tokens that were found stored, by the engine's counter, else by each request."""
    span = phase(record.run)
    if span is not None:
        grown = series(record.engine_samples, lambda s: s.prefix_cache_hits_total).increase(*span)
        if grown is not None:
            return round(grown)
    return total(request.cached_prompt_tokens for request in measured(record))
