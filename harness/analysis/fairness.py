"""Were two variants measured under the same conditions, but for what was meant to differ?

Method: each trial is held against the baseline's trials of the same workload (their KV pool,
attention backend, engine version and machine), and against the other launches of its own variant
(a repeated start must be granted the same pool). Not covered: conditions that the record does not
know; an unknown pool is said to be unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from harness.analysis.granted import granted_pool_bytes, pool_slots
from harness.analysis.results import Validity, Verdict
from harness.record import Run, TrialRecord
from harness.units import Fraction, format_bytes, format_count

#: Log lines give pools to 0.01 GiB; pools nearer than this are the same.
POOL_TOLERANCE: Fraction = 0.01


def fairness(
    trial: TrialRecord, peers: Sequence[TrialRecord], fields: Sequence[str]
) -> list[Verdict]:
    """Return what makes the trial's ``fields`` no fair match for the baseline's."""
    sealed = [peer.run for peer in peers if peer.run.status == "sealed"]
    base = [run for run in sealed if run.trial.is_baseline]
    mine = [run for run in sealed if run.trial.variant == trial.run.trial.variant]
    found = list(_launches(trial.run, mine))
    if not trial.run.trial.is_baseline and base:
        found += [*_machine(trial.run, base), *_engine(trial.run, base), *_pool(trial.run, base)]
    # Order of the fields is kept, so that reports list them alike.
    return [
        Verdict(field, verdict, code, reason) for verdict, code, reason in found for field in fields
    ]


_Doubt = tuple[Validity, str, str]


def _told(runs: Iterable[Run], value: Callable[[Run], Any]) -> list[Any]:
    """The distinct known values, in order."""
    return list(dict.fromkeys(told for run in runs if (told := value(run)) is not None))


def _launches(run: Run, launches: Sequence[Run]) -> Iterator[_Doubt]:
    blocks = _told([run, *launches], _blocks)
    if blocks and max(blocks) > (1 + POOL_TOLERANCE) * min(blocks):
        yield (
            "suspect",
            "grant_varies",
            f"the launches were granted {min(blocks):,} to {max(blocks):,} KV blocks, not alike",
        )


def _differs(
    run: Run, base: Sequence[Run], value: Callable[[Run], str | None]
) -> tuple[str, str] | None:
    """(this run's value, the baseline's), where both are known and not the same."""
    mine, theirs = value(run), _told(base, value)
    if mine is None or not theirs or theirs == [mine]:
        return None
    return mine, ", ".join(theirs)


def _machine(run: Run, base: Sequence[Run]) -> Iterator[_Doubt]:
    for name, value in _MACHINE:
        if (pair := _differs(run, base, value)) is not None:
            reason = f"the {name} differs: {pair[0]} here, {pair[1]} under the baseline"
            yield "invalid", "environment_differs", reason


def _gpus(run: Run) -> str | None:
    return ", ".join(gpu.name for gpu in run.environment.gpus) or None


_MACHINE: tuple[tuple[str, Callable[[Run], str | None]], ...] = (
    ("profile", lambda run: run.environment.profile),
    ("GPU", _gpus),
    ("CPU", lambda run: run.environment.cpu),
)


def _engine(run: Run, base: Sequence[Run]) -> Iterator[_Doubt]:
    version = _differs(run, base, lambda one: one.server.engine_version if one.server else None)
    if version is not None:
        reason = f"the engine differs: {version[0]} here, {version[1]} under the baseline"
        yield "invalid", "engine_version_differs", reason
    backend = _differs(run, base, lambda one: one.server.attention_backend if one.server else None)
    if backend is not None:
        reason = (
            f"the attention backend differs: {backend[0]} here, {backend[1]} under the baseline"
        )
        reason += "; the effect is of kernel and cache together"
        yield "suspect", "attention_backend_differs", reason


def _pool(run: Run, base: Sequence[Run]) -> Iterator[_Doubt]:
    mode = run.trial.kv_budget.get("mode")
    if mode == "equal_tokens":
        yield from _equal_tokens(run, base)
        return
    mine, theirs = granted_pool_bytes(run), _told(base, granted_pool_bytes)
    if mine is None or not theirs:
        if mode == "equal_bytes":
            reason = "the bytes of a KV pool are unknown: equal budgets can't be confirmed"
            yield "suspect", "kv_pool_unknown", reason
        return
    if any(abs(mine - other) > POOL_TOLERANCE * other for other in theirs):
        amounts = ", ".join(format_bytes(other) for other in theirs)
        asked = "the scenario asked for equal bytes" if mode == "equal_bytes" else "engine's choice"
        reason = f"the KV pool differs: {format_bytes(mine)} here, {amounts} under the baseline"
        yield "suspect", "kv_pool_differs", f"{reason} ({asked})"


def _equal_tokens(run: Run, base: Sequence[Run]) -> Iterator[_Doubt]:
    mine, theirs = _slots(run), _told(base, _slots)
    if mine is None or not theirs:
        reason = "the tokens of a KV pool are unknown: equal budgets can't be confirmed"
        yield "suspect", "kv_pool_unknown", reason
    elif any(abs(mine - other) > max(_block(run), *map(_block, base)) for other in theirs):
        amounts = ", ".join(format_count(other) for other in theirs)
        reason = (
            f"the KV pool differs: {format_count(mine)} tokens here, {amounts} under the baseline"
        )
        yield "suspect", "kv_pool_differs", f"{reason} (the scenario asked for equal tokens)"


def _slots(run: Run) -> int | None:
    if run.server is None:
        return None
    slots = pool_slots(run.server.granted)
    return run.server.granted.kv_cache_tokens if slots is None else slots


def _blocks(run: Run) -> int | None:
    return run.server.granted.num_gpu_blocks if run.server is not None else None


def _block(run: Run) -> int:
    """Rounding of a pool: one block, none if its size is unknown."""
    return (run.server.granted.block_size or 0) if run.server is not None else 0
