"""Conversations that return: are their blocks found, fetched from host memory, or computed anew?

Method: the requests of a workload with ``turns`` are told apart by the length of their prompts.
Per turn: TTFT and the share of the prompt that was found stored (by each request's own count,
where the server gives it), over all sealed trials of a variant.

The prefill rate is that of the first turns, which find nothing. The link's effective rate is
worked out from what a fetching variant saves: the fetched bytes over the TTFT that is left beyond
computing the rest. What a link must carry is ``theory.offload``.

Not covered: fetching that overlaps with computing, and fixed costs per transfer: both move the
effective rate away from the link's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from harness.analysis.latency import is_completed, ttft
from harness.analysis.metrics import measured
from harness.analysis.series import total
from harness.record import RequestRecord, TrialRecord
from harness.units import Fraction, Seconds, Tokens


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn of all conversations. ``cached_fraction`` is None where the server does not tell."""

    number: int
    prompt_tokens: Tokens
    requests: int
    ttft_p50_s: Seconds | None
    cached_fraction: Fraction | None


@dataclass(frozen=True, slots=True)
class ReturningTurns:
    """One variant's turns, and the tokens/s at which its first turns were computed.

    ``fetched_tokens`` came from outside the device's pool (the engine's external cache), None
    where the engine does not count them.
    """

    variant: str
    offloads: bool
    turns: tuple[Turn, ...]
    prefill_tokens_per_s: float | None
    fetched_tokens: float | None


def returning_turns(records: Sequence[TrialRecord]) -> tuple[ReturningTurns, ...]:
    """The turns of every variant that was played with returning conversations."""
    by_variant: dict[str, list[TrialRecord]] = {}
    for record in records:
        if record.run.status == "sealed" and record.run.trial.workload.get("turns"):
            by_variant.setdefault(record.run.trial.variant, []).append(record)
    return tuple(_turns_of(name, own) for name, own in by_variant.items())


def _turns_of(variant: str, records: Sequence[TrialRecord]) -> ReturningTurns:
    requests = [r for record in records for r in measured(record) if is_completed(r)]
    lengths = sorted({request.prompt_tokens_planned for request in requests})
    turns = tuple(
        _turn(number, [r for r in requests if r.prompt_tokens_planned == length])
        for number, length in enumerate(lengths, 1)
    )
    flags = records[0].run.trial.server_flags
    return ReturningTurns(
        variant=variant,
        offloads=flags.get("kv_offloading_size") is not None,
        turns=turns,
        prefill_tokens_per_s=_prefill_rate(turns),
        fetched_tokens=_fetched(records),
    )


def _turn(number: int, requests: Sequence[RequestRecord]) -> Turn:
    waits = [wait for request in requests if (wait := ttft(request)) is not None]
    told = [r.cached_prompt_tokens for r in requests if r.cached_prompt_tokens is not None]
    prompts = sum(request.prompt_tokens_planned for request in requests)
    return Turn(
        number=number,
        prompt_tokens=requests[0].prompt_tokens_planned,
        requests=len(requests),
        ttft_p50_s=median(waits) if waits else None,
        cached_fraction=sum(told) / prompts if len(told) == len(requests) and prompts else None,
    )


def _prefill_rate(turns: Sequence[Turn]) -> float | None:
    first = turns[0] if turns else None
    if first is None or not first.ttft_p50_s:
        return None
    return first.prompt_tokens / first.ttft_p50_s


def _fetched(records: Sequence[TrialRecord]) -> float | None:
    """Over the trials' whole servers: an engine that fetches does so for these loads alone."""
    return total(
        record.engine_samples[-1].external_cache_hits_total if record.engine_samples else None
        for record in records
    )


def effective_link(found: ReturningTurns, bytes_per_token: float) -> float | None:
    """Bytes/s at which a variant's last turns were fetched from host memory, as they saw it.

    Their wait beyond computing what was not found is put down to fetching; of the tokens found,
    those count as fetched that the pool itself did not hold. None where nothing was fetched, the
    engine does not count, or no time is left over.
    """
    rate, fetched = found.prefill_tokens_per_s, found.fetched_tokens
    stored = [
        turn.prompt_tokens * turn.requests * turn.cached_fraction
        for turn in found.turns
        if turn.cached_fraction is not None
    ]
    if not rate or not fetched or len(stored) != len(found.turns) or not sum(stored):
        return None
    last = found.turns[-1]
    if last.ttft_p50_s is None or not stored[-1]:
        return None
    each = stored[-1] / last.requests
    left_s = last.ttft_p50_s - (last.prompt_tokens - each) / rate
    share = min(fetched / sum(stored), 1.0)
    return share * each * bytes_per_token / left_s if left_s > 0 else None
