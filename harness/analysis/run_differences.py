"""In what do stored runs differ, and in what must they not?

Method: each run is laid out as flat facts (machine, packages, commit, engine, flags, environment,
scenario); a key whose values are not the same everywhere is a difference and is always told.
Differences of the profile, the engine, the model or the loads make figures of other things, and
are refused unless the reader insists. What one variant's server has in common with the others'
is told once. Nothing, an empty list and a key that an older kvbench did not write are the same.

Not covered: what a difference does to a figure; facts that the record does not hold; paths, run
ids and dates, which differ between any two runs, and the measured peaks of a CPU.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harness.record import BenchRecord, Environment, Run, TrialRecord
from harness.scenario.schema import stored_settings, workload_label
from harness.units import counted

#: Runs that differ in one of these measure different things.
REFUSED = ("profile", "engine", "model", "workloads")
#: Told under other names, or true of every run.
_NOT_SCENARIO = frozenset(
    {"schema", "name", "profile", "engine", "model", "workloads", "server", "env", "variants"}
    | {"unchecked_flags"}
)
#: What a server reported that is a condition, not a result.
_GRANTED = ("block_size", "cache_dtype", "enable_prefix_caching", "kv_cache_memory_bytes")


@dataclass(frozen=True, slots=True)
class Difference:
    """One key whose value is not the same in all runs; ``values`` are in the runs' order.

    ``refused`` marks what makes a comparison unlike. None is unknown, or not set.
    """

    key: str
    values: tuple[Any, ...]
    refused: bool = False


Facts = dict[str, Any]


def differences(
    runs: Sequence[tuple[BenchRecord, Sequence[TrialRecord]]],
) -> tuple[Difference, ...]:
    """Return every key in which the runs differ, what is refused first."""
    plain = _differing([_facts(bench, trials) for bench, trials in runs])
    found = [*plain, *_of_variants(runs)]
    return tuple(sorted(found, key=lambda one: not one.refused))


def workload_key(workload: Mapping[str, Any]) -> str:
    """Two loads with the same key are one load: unset keys and 1 for 1.0 make no difference."""
    # A trial's copy of its load carries the label, which repeats the other keys.
    own = {key: value for key, value in workload.items() if key != "label"}
    told = {key: _number(value) for key, value in own.items() if not _absent(value)}
    return json.dumps(told, sort_keys=True, default=str)


def planned_workloads(bench: BenchRecord) -> dict[str, Mapping[str, Any]]:
    """The loads that a run's scenario asks for, by key."""
    loads = bench.scenario.get("workloads") or ()
    return {workload_key(load): load for load in loads if isinstance(load, dict)}


def _differing(sides: Sequence[Facts]) -> Iterator[Difference]:
    for key in dict.fromkeys(key for side in sides for key in side):
        values = tuple(side.get(key) for side in sides)
        if not _all_same(values):
            yield Difference(key, values, key in REFUSED)


def _all_same(values: Sequence[Any]) -> bool:
    texts = {None if _absent(value) else _text(value) for value in values}
    return len(texts) <= 1


def _absent(value: Any) -> bool:
    return value is None or value in ([], {}, (), "")


def _text(value: Any) -> str:
    return json.dumps(_number(value), sort_keys=True, default=str)


def _number(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value


# ── one run, flat ───────────────────────────────────────────────────────────────────────────


def _facts(bench: BenchRecord, trials: Sequence[TrialRecord]) -> Facts:
    return {
        "profile": bench.environment.profile,
        "engine": bench.scenario.get("engine") or "vllm",
        "model": _models(bench, trials),
        "workloads": sorted(_load_text(load) for load in planned_workloads(bench).values()),
        "scenario": bench.scenario_name,
        **_machine(bench.environment),
        "variants": sorted(_variants(bench)),
        **_flat("scenario", {k: v for k, v in bench.scenario.items() if k not in _NOT_SCENARIO}),
    }


def _models(bench: BenchRecord, trials: Sequence[TrialRecord]) -> str | None:
    """The scenario's model and those that variants name; for an attached server the served."""
    own = [bench.scenario.get("model"), *(v.get("model") for v in _variants(bench).values())]
    served = [record.run.trial.model for record in trials]
    named = [str(name) for name in own if name] or served
    return ", ".join(dict.fromkeys(named)) or None


def _variants(bench: BenchRecord) -> dict[str, dict[str, Any]]:
    given = bench.scenario.get("variants") or {}
    return {str(name): v if isinstance(v, dict) else {} for name, v in given.items()}


def _load_text(load: Mapping[str, Any]) -> str:
    """A load's label with what the label leaves out."""
    warm_ups = load.get("warmup_requests", 0)
    rest = [counted(warm_ups if isinstance(warm_ups, int) else None, "warm-up")]
    if load.get("request_rate") is not None:
        rest.append(f"burstiness {load.get('burstiness')}")
    if load.get("length_mix"):
        rest.append(f"mix {_text(load['length_mix'])}")
    return f"{workload_label(load)} ({', '.join(rest)})"


def _machine(environment: Environment) -> Facts:
    gpus = environment.gpus
    return {
        "kvbench_version": environment.kvbench_version,
        "git_revision": environment.git_revision,
        "git_dirty": environment.git_dirty,
        "gpu": ", ".join(gpu.name for gpu in gpus) or None,
        "gpu_driver": ", ".join(dict.fromkeys(gpu.driver or "?" for gpu in gpus)) or None,
        "gpu_memory_bytes": [gpu.total_bytes for gpu in gpus],
        "gpu_power_limit_w": [gpu.power_limit_w for gpu in gpus],
        "gpu_mig": [gpu.mig for gpu in gpus],
        "cpu": environment.cpu,
        "cpu_cores": environment.cpu_cores,
        "memory_bytes": environment.memory_bytes,
        "platform": environment.platform,
        "python": environment.python,
        **_flat("packages", environment.packages),
    }


def _flat(prefix: str, value: Any) -> Facts:
    """``{"a": {"b": 1}}`` → ``{"a.b": 1}``."""
    if not isinstance(value, Mapping) or not value:
        return {prefix: value}
    found: Facts = {}
    for key, inner in value.items():
        found |= _flat(f"{prefix}.{key}", inner)
    return found


# ── each variant's server ───────────────────────────────────────────────────────────────────


def _of_variants(
    runs: Sequence[tuple[BenchRecord, Sequence[TrialRecord]]],
) -> Iterator[Difference]:
    """What differs in the servers of variants that all runs have; once where all differ alike."""
    common = [name for name in _variants(runs[0][0]) if all(name in _variants(b) for b, _ in runs)]
    by_key: dict[str, dict[str, tuple[Any, ...]]] = {}
    for name in common:
        met = [_first_met(trials, name) for _, trials in runs]
        # A run that met no server yet differs in nothing that servers report.
        told = met if None not in met else ()
        sides = [
            _settings(bench, name) | (_reported(told[place]) if told else {})
            for place, (bench, _) in enumerate(runs)
        ]
        for key in dict.fromkeys(key for side in sides for key in side):
            by_key.setdefault(key, {})[name] = tuple(side.get(key) for side in sides)
    for key, by_variant in by_key.items():
        yield from _told_once(key, by_variant, len(common))


def _told_once(
    key: str, by_variant: Mapping[str, tuple[Any, ...]], variants: int
) -> Iterator[Difference]:
    alike = {_text(list(values)) for values in by_variant.values()}
    differing = {name: v for name, v in by_variant.items() if not _all_same(v)}
    if differing and len(alike) == 1 and len(by_variant) == variants:
        yield Difference(key, next(iter(differing.values())))
    else:
        yield from (Difference(f"{name}: {key}", values) for name, values in differing.items())


def _settings(bench: BenchRecord, variant: str) -> Facts:
    """What the scenario asks of a variant's server."""
    given = _variants(bench)[variant]
    flags, env = stored_settings(bench.scenario, variant)
    return {**_flat("flags", flags), **_flat("env", env), "emulate": given.get("emulate")}


def _first_met(trials: Sequence[TrialRecord], variant: str) -> Run | None:
    """The variant's first launch that met a server; it tells what the server was."""
    own = (record.run for record in trials if record.run.trial.variant == variant)
    return next((run for run in own if run.server is not None), None)


def _reported(run: Run | None) -> Facts:
    if run is None or run.server is None:
        return {}
    server = run.server
    return {
        "engine_name": server.engine,
        "engine_version": server.engine_version,
        "attention_backend": server.attention_backend,
        "launched": server.launched,
        "cpu_binding": server.cpu_binding,
        **{name: getattr(server.granted, name) for name in _GRANTED},
        **_flat("env", server.env),
        **_flat("model_config", run.trial.model_config),
    }
