"""Several stored runs side by side: each variant under each load, the first run the baseline.

Method: a run takes the place that a variant has inside one run, so that rows, intervals, verdicts
and tables are the very same (``rows``). How a ratio is estimated follows from what the two runs
are. Two runs that were taken apart are **unpaired**: repeat 0 of one is no neighbour in time of
repeat 0 of the other, so the interval is Welch's. Where both hold records of the same launches (a
run against itself, or a copy of it) they are **paired** launch by launch, and whatever is the same
in both cancels: identical records give exactly 1. What was said against a variant in view of its
own run's baseline is left out here; that runs differ in their stamps or objectives is added. Of
two profiles only what the engine granted is compared: whatever a load showed is withheld.

Trials that failed, were skipped, never ended or never began are counted on each side. Not covered:
a drift of the machine between two runs, which no interval of theirs can know; answer quality.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from harness.analysis.compare import analyse
from harness.analysis.results import Analysis, Caution, Comparison, TrialAnalysis, Verdict
from harness.analysis.rows import Estimate, comparison
from harness.analysis.run_differences import (
    Difference,
    differences,
    planned_workloads,
    workload_key,
)
from harness.analysis.stats import METHOD, METHOD_UNPAIRED, ratio_interval, unpaired_ratio_interval
from harness.errors import InputError
from harness.record import BenchRecord, TrialRecord
from harness.scenario.schema import workload_label

#: Verdicts that hold a variant against the baseline variant of its own run.
_OF_ITS_OWN_RUN = frozenset(
    {
        "environment_differs",
        "engine_version_differs",
        "attention_backend_differs",
        "kv_pool_differs",
        "kv_pool_unknown",
    }
)
METHODS: Mapping[str, str] = {
    "baseline": "the first run; every ratio is that run's under another's, variant by variant and "
    "load by load",
    "unpaired": f"95 %, {METHOD_UNPAIRED}: runs that were taken apart; none below 3 repeats on "
    "either side",
    "paired": f"95 %, {METHOD}: where both runs hold records of the same launches (a run against "
    "itself, or a copy)",
    "exact": "what the engine grants is compared by value, over all launches; bytes per token of "
    "pools that differ in size are known up to one block",
    "profiles": "a CPU's speed over a GPU's is never a strategy's effect: of two profiles, only "
    "what the engine grants is compared",
    "not_covered": "how the machine drifted between the runs: take them close together, on a "
    "machine that does nothing else",
}


@dataclass(frozen=True, slots=True)
class StoredRun:
    """One run as it is compared; ``label`` is its letter, the baseline's is A."""

    label: str
    bench: BenchRecord
    records: tuple[TrialRecord, ...]
    analysis: Analysis


@dataclass(frozen=True, slots=True)
class Side:
    """What became of one variant under one load in one run.

    ``planned`` is whether the run asks for it at all. ``counts`` are trials by how they ended,
    with ``never begun`` for those without a record. ``reasons`` are those of trials that gave no
    figures, each once.
    """

    run: str
    planned: bool
    counts: Mapping[str, int]
    reasons: tuple[str, ...]

    @property
    def lost(self) -> int:
        """Trials that should have been measured and were not; skipped ones are none of them."""
        return sum(self.counts.get(how, 0) for how in ("failed", "started", "never begun"))

    @property
    def skipped(self) -> bool:
        """Whether the device or engine could not take it."""
        return self.counts.get("skipped", 0) > 0 and not self.counts.get("sealed")


@dataclass(frozen=True, slots=True)
class VariantComparison:
    """One variant under one load, in all runs.

    The ``comparison``'s variants are the labels of the runs that left a trial; None where the
    baseline or all others left none. ``trials`` are each run's, in the order of ``sides``;
    ``estimates`` tells by label whether a ratio is ``paired`` or ``unpaired``.
    """

    variant: str
    workload: Mapping[str, Any]
    workload_label: str
    sides: tuple[Side, ...]
    trials: tuple[tuple[TrialAnalysis, ...], ...]
    comparison: Comparison | None
    estimates: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class RunComparison:
    """Everything that is said about several runs.

    ``forced`` are the keys of the differences that would have been refused.
    """

    runs: tuple[StoredRun, ...]
    differences: tuple[Difference, ...]
    forced: tuple[str, ...]
    loads: tuple[VariantComparison, ...]
    cautions: tuple[Caution, ...]


def compare_runs(
    runs: Sequence[tuple[BenchRecord, Sequence[TrialRecord]]], *, force_unlike: bool = False
) -> RunComparison:
    """Hold runs against the first of them.

    Raises:
        InputError: fewer than two runs; unlike runs, unless ``force_unlike``; or nothing that
            two of them have in common.
    """
    if len(runs) < 2:
        raise InputError("a comparison needs at least two runs", legal=["RUN_A RUN_B [RUN…]"])
    found = differences(runs)
    refused = [one for one in found if one.refused]
    if refused and not force_unlike:
        raise _unlike(runs, found)
    stored = tuple(
        StoredRun(label_of(place), bench, tuple(records), analyse(bench, records))
        for place, (bench, records) in enumerate(runs)
    )
    loads = tuple(_variant_comparisons(stored))
    if not any(load.comparison is not None for load in loads):
        raise InputError(
            "there is nothing to compare: no variant left a trial under the same load in "
            f"{runs[0][0].run_id} and another run",
            legal=None,
            next_move="`kvbench report RUN` shows what each run holds",
        )
    forced = tuple(one.key for one in refused)
    return RunComparison(stored, found, forced, loads, tuple(_cautions(stored, loads, forced)))


def label_of(place: int) -> str:
    """A to Z, then R27, R28 and so on."""
    return chr(ord("A") + place) if place < 26 else f"R{place + 1}"


def _unlike(
    runs: Sequence[tuple[BenchRecord, Sequence[TrialRecord]]], found: Sequence[Difference]
) -> InputError:
    refused = [one for one in found if one.refused]
    lines = []
    for one in refused:
        lines.append(f"{one.key}:")
        for (bench, _), value in zip(runs, one.values, strict=True):
            told = ", ".join(value) if isinstance(value, list) else value
            lines.append(f"  {bench.run_id}: {told or 'unknown'}")
    if others := [one.key for one in found if not one.refused]:
        lines.append(f"differing, too, and no reason to refuse: {', '.join(others)}")
    keys = [one.key for one in refused]
    return InputError(
        f"the runs are unlike: {_differ(keys)}, so a ratio would compare different things",
        evidence="\n".join(lines),
        next_move="give runs of the same question, or --force-unlike to compare all the same what "
        "they have in common",
    )


def _differ(keys: Sequence[str]) -> str:
    """``their model differs``, ``their model and workloads differ``."""
    several = len(keys) > 1 or keys[0].endswith("s")
    return f"their {' and '.join(keys)} {'differ' if several else 'differs'}"


# ── one variant under one load ──────────────────────────────────────────────────────────────


def _variant_comparisons(runs: Sequence[StoredRun]) -> Iterator[VariantComparison]:
    loads: dict[str, Mapping[str, Any]] = {}
    asked: dict[tuple[str, str], None] = {}
    for run in runs:
        planned = planned_workloads(run.bench)
        done = [(r.run.trial.variant, workload_key(r.run.trial.workload)) for r in run.records]
        loads |= {workload_key(r.run.trial.workload): r.run.trial.workload for r in run.records}
        loads |= planned
        variants = run.bench.scenario.get("variants") or ()
        pairs = [(str(variant), key) for variant in variants for key in planned]
        asked |= dict.fromkeys([*pairs, *done])
    for variant, key in asked:
        yield _load(runs, variant, key, loads[key])


def _load(
    runs: Sequence[StoredRun], variant: str, key: str, workload: Mapping[str, Any]
) -> VariantComparison:
    own = [_own(run, variant, key) for run in runs]
    trials = tuple(tuple(trial for _, trial in side) for side in own)
    sides = tuple(_side(run, variant, key, told) for run, told in zip(runs, trials, strict=True))
    estimates = {
        run.label: "paired" if _same_launches(own[0], side) else "unpaired"
        for run, side in zip(runs[1:], own[1:], strict=True)
    }
    return VariantComparison(
        variant=variant,
        workload=workload,
        workload_label=workload_label(workload),
        sides=sides,
        trials=trials,
        comparison=_comparison(runs, variant, trials, estimates),
        estimates=estimates,
    )


_Own = list[tuple[TrialRecord, TrialAnalysis]]


def _own(run: StoredRun, variant: str, key: str) -> _Own:
    """A run's trials of one variant under one load, as records and as analysed."""
    by_id = {trial.trial_id: trial for trial in run.analysis.trials}
    return [
        (record, by_id[record.run.trial.trial_id])
        for record in run.records
        if record.run.trial.variant == variant and workload_key(record.run.trial.workload) == key
    ]


def _side(run: StoredRun, variant: str, key: str, trials: Sequence[TrialAnalysis]) -> Side:
    bench = run.bench
    planned = variant in (bench.scenario.get("variants") or ()) and key in planned_workloads(bench)
    counts: dict[str, int] = {}
    for trial in trials:
        counts[trial.status] = counts.get(trial.status, 0) + 1
    reasons = [trial.reason for trial in trials if trial.status != "sealed" and trial.reason]
    if variant in bench.skipped:
        reasons.append(bench.skipped[variant])
        counts.setdefault("skipped", 1)
    repeats = bench.scenario.get("repeats")
    missing = repeats - len(trials) if isinstance(repeats, int) else 0
    if planned and missing > 0 and variant not in bench.skipped:
        counts["never begun"] = missing
    return Side(run.label, planned or bool(trials), counts, tuple(dict.fromkeys(reasons)))


def _same_launches(base: _Own, other: _Own) -> bool:
    """Whether every repeat that both have is a record of one and the same server launch."""
    mine = {record.run.trial.repeat: record for record, _ in other}
    theirs = {record.run.trial.repeat: record for record, _ in base}
    common = mine.keys() & theirs.keys()
    return bool(common) and all(_same_launch(mine[at], theirs[at]) for at in common)


def _same_launch(one: TrialRecord, other: TrialRecord) -> bool:
    a, b = one.run, other.run
    if (a.trial.trial_id, a.trial.launch) != (b.trial.trial_id, b.trial.launch):
        return False
    # No two launches begin in the same microsecond; without the clock, only equal records agree.
    return one == other if a.zero_unix_s is None else a.zero_unix_s == b.zero_unix_s


_ESTIMATES: Mapping[str, Estimate] = {
    "paired": ratio_interval,
    "unpaired": unpaired_ratio_interval,
}


def _comparison(
    runs: Sequence[StoredRun],
    variant: str,
    trials: Sequence[Sequence[TrialAnalysis]],
    estimates: Mapping[str, str],
) -> Comparison | None:
    """The rows, with runs in the place of variants."""
    if not trials[0] or not any(trials[1:]):
        return None
    first = (runs[0], trials[0])
    relabelled = [
        replace(
            trial,
            variant=run.label,
            is_baseline=run is runs[0],
            verdicts=tuple(_verdicts(trial, run, *first)),
        )
        for run, own in zip(runs, trials, strict=True)
        for trial in own
    ]
    made = comparison(
        relabelled,
        runs[0].label,
        estimates={label: _ESTIMATES[name] for label, name in estimates.items()},
    )
    return replace(made, workload_label=f"{variant} · {made.workload_label}")


def _verdicts(
    trial: TrialAnalysis, run: StoredRun, base: StoredRun, under_base: Sequence[TrialAnalysis]
) -> Iterator[Verdict]:
    yield from (v for v in trial.verdicts if v.code not in _OF_ITS_OWN_RUN)
    theirs = under_base[0].stamp
    if trial.stamp != theirs:
        reason = f"{trial.stamp} here, {theirs} in run {base.label}: a figure of one kind is no"
        yield Verdict("*", "invalid", "stamps_differ", f"{reason} measure for the other")
    mine, other = run.bench.environment.profile, base.bench.environment.profile
    if mine != other:
        reason = f"{mine} profile here, {other} in run {base.label}: what a load shows on one"
        yield Verdict("*", "invalid", "profiles_differ", f"{reason} is no measure for the other")
    if run.bench.scenario.get("slo") != base.bench.scenario.get("slo"):
        reason = f"the objectives (slo) are not those of run {base.label}"
        yield Verdict("goodput", "invalid", "objectives_differ", reason)


# ── what to be told besides ─────────────────────────────────────────────────────────────────


def _cautions(
    runs: Sequence[StoredRun], loads: Sequence[VariantComparison], forced: Sequence[str]
) -> Iterator[Caution]:
    if "profile" in forced:
        yield Caution(
            "profiles_differ",
            "these are runs of two profiles: their speeds tell two machines apart and are never "
            "the effect of a strategy. Every figure of a load is withheld; only what the engine "
            "granted (bytes, capacity) is compared",
        )
    if forced:
        text = f"unlike runs were compared because it was asked for: {_differ(forced)}"
        yield Caution("unlike", f"{text}; a ratio across them is not of the same thing")
    for run in runs:
        yield from _of_run(run)
    for run in runs[1:]:
        if all(load.estimates[run.label] == "paired" for load in _compared(loads, run.label)):
            text = f"runs A and {run.label} hold records of the same launches: a run against itself"
            yield Caution("same_launches", text)
    lone = [load for load in loads if load.comparison is None]
    if lone:
        names = "; ".join(f"{load.variant} · {load.workload_label}" for load in lone[:5])
        rest = f" and {len(lone) - 5} more" if len(lone) > 5 else ""
        yield Caution("not_in_both", f"not compared, as no other run has them: {names}{rest}")
    if any(run.bench.environment.profile == "cpu" for run in runs):
        yield Caution(
            "cpu_profile",
            "taken without a GPU: capacity and bytes carry over, speeds are this processor's",
        )


def _compared(loads: Iterable[VariantComparison], label: str) -> list[VariantComparison]:
    return [x for x in loads if x.comparison is not None and label in x.comparison.variants]


def _of_run(run: StoredRun) -> Iterator[Caution]:
    ended = [trial.status for trial in run.analysis.trials]
    never = len(run.bench.trial_ids) - len(run.records)
    counts = {
        "failed": ended.count("failed"),
        "not finished": ended.count("started"),
        "never begun": never,
    }
    told = [f"{count} {how}" for how, count in counts.items() if count > 0]
    if told:
        text = f"run {run.label} is not whole: {', '.join(told)} of {len(run.bench.trial_ids)}"
        yield Caution("run_not_whole", f"{text} trials; what is left may not stand for the rest")
    if run.bench.environment.git_dirty:
        text = f"run {run.label}: the code had uncommitted changes, so its commit does not name it"
        yield Caution("git_dirty", text)
