"""How it was measured, in lines of text: machine, commands, budget, time, every trial's proof.

Method: what the records hold is shown as it stands; commands are quoted so that they can be
pasted; long lists are cut with the number of what was left out and a link to the file.

Not covered: markup and escaping (the templates), definitions (a template of their own), which
requests are shown (``request_table``).
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from harness import store, units
from harness.analysis import latency
from harness.analysis.results import Analysis, KvComparison, TrialAnalysis
from harness.analysis.verdict import grouped
from harness.record import ATTACHED, HOW_ENDED, BenchRecord, Environment, ServerFacts, TrialRecord
from harness.report import request_table
from harness.report.request_table import RequestTable
from harness.shell import shell_line
from harness.units import Seconds

MAX_LOG_LINES = 12


@dataclass(frozen=True, slots=True)
class Fact:
    """One line of a list: a name and what it is; ``code`` sets it as typed text."""

    name: str
    text: str
    code: bool = False


@dataclass(frozen=True, slots=True)
class TrialLine:
    """One trial's proof: how it ended, what was run, what the log said, its requests."""

    trial_id: str
    variant: str
    workload: str
    repeat: str
    status: str
    reason: str
    counts: str
    facts: tuple[Fact, ...]
    command: str
    log_lines: tuple[str, ...]
    warnings: tuple[str, ...]
    warnings_left: int
    log_tail: str
    verdicts: tuple[tuple[str, str, str], ...]
    requests: RequestTable
    requests_link: str
    links: tuple[tuple[str, str], ...]


def command_text(words: Iterable[str], env: Mapping[str, str] | None = None) -> str:
    """A command as it can be pasted into a shell, with what was set in its environment."""
    settings = [f"{name}={shell_line([value])}" for name, value in (env or {}).items()]
    return " ".join([*settings, shell_line(words)])


def in_clone(words: Iterable[str]) -> str:
    """Our own command as it is typed in a clone after ``make setup``, which puts it on no PATH."""
    program, *rest = words
    return command_text([".venv/bin/kvbench" if program == "kvbench" else program, *rest])


def machine(environment: Environment) -> tuple[Fact, ...]:
    """The machine and software of a run."""
    gpus = [
        f"{gpu.name}, {units.format_bytes(gpu.total_bytes)}, driver {gpu.driver or units.DASH}"
        for gpu in environment.gpus
    ]
    cores = units.counted(environment.cpu_cores, "core")
    attached = environment.profile == ATTACHED
    # What follows is then the client's machine; the server may run on another.
    own = " (client)" if attached else ""
    packages = ", ".join(f"{name} {version}" for name, version in environment.packages.items())
    return (
        Fact("Profile", environment.profile),
        Fact("Taken at", environment.started_at or units.DASH),
        Fact("GPU", "; ".join(gpus) or (units.DASH if attached else "none")),
        Fact(f"Processor{own}", f"{environment.cpu or units.DASH}, {cores}"),
        Fact(f"Memory{own}", units.format_bytes(environment.memory_bytes)),
        Fact(f"System{own}", f"{environment.platform}, Python {environment.python}"),
        Fact("kvbench", environment.kvbench_version),
        Fact(f"Packages{own}", packages or units.DASH),
        Fact("Git revision", _revision(environment)),
    )


def _revision(environment: Environment) -> str:
    if environment.git_revision is None:
        return "unknown: not run from a git checkout"
    state = {
        True: "with uncommitted changes (dirty): the revision alone does not reproduce it",
        False: "clean",
        None: "state unknown",
    }[environment.git_dirty]
    return f"{environment.git_revision}, {state}"


def setup(bench: BenchRecord, trials: Sequence[TrialRecord], analysis: Analysis) -> list[Fact]:
    """What was run, with which budget, and where the time went."""
    scenario = bench.scenario
    server = next((trial.run.server for trial in trials if trial.run.server), None)
    version = server.engine_version if server else None
    shared = scenario.get("server") or {}
    return [
        Fact("Command", command_text(bench.command), code=True),
        Fact("Model", _model(scenario, server)),
        Fact("Engine", f"{server.engine if server else 'vllm'} {version or units.DASH}"),
        Fact("Flags of every server", json.dumps(shared, ensure_ascii=False), code=True),
        *_variant_facts(bench),
        Fact("KV budget", _budget(analysis)),
        Fact("Ceilings (roofline)", _ceilings(analysis)),
        Fact("Repeats", _repeats(scenario.get("repeats"))),
        Fact("Objectives (SLO)", _objectives(scenario.get("slo"))),
        Fact("Time", time_text(bench)),
    ]


def _model(scenario: Mapping[str, object], server: ServerFacts | None) -> str:
    served = server.served_model if server is not None and not server.launched else None
    return str(served or scenario.get("model") or units.DASH)


def _repeats(count: object) -> str:
    if count == 1:
        return "1: one server start per variant"
    return f"{count or units.DASH}, variants interleaved; each repeat is a new server start"


def _variant_facts(bench: BenchRecord) -> list[Fact]:
    variants = bench.scenario.get("variants") or {}
    facts: list[Fact] = []
    for name, variant in variants.items():
        flags = variant.get("flags", variant) if isinstance(variant, dict) else variant
        facts.append(Fact(f"Variant {name}", json.dumps(flags, ensure_ascii=False), code=True))
    return facts


def _budget(analysis: Analysis) -> str:
    size = units.format_bytes(analysis.kv_budget_bytes)
    if analysis.kv_budget_mode == "equal_bytes":
        return f"equal bytes: every variant's pool was given {size}"
    if analysis.kv_budget_mode == "equal_tokens":
        tokens = units.format_count(analysis.kv_budget_tokens)
        return f"equal tokens: every variant's pool was given room for {tokens} tokens"
    if analysis.kv_budget_mode == "engine":
        return "none: each variant ran with the pool that the engine chose for it"
    return "unknown"


def _ceilings(analysis: Analysis) -> str:
    """What the device does at best, and by whose word; or why nobody knows."""
    known = next((trial.ceilings for trial in analysis.trials if trial.ceilings is not None), None)
    if known is None:
        reasons = dict.fromkeys(t.ceilings_reason for t in analysis.trials if t.ceilings_reason)
        return f"unknown: {next(iter(reasons), 'no trial was played')}"
    return (
        f"{known.device}: {units.format_bandwidth(known.bandwidth_bytes_per_s)}, "
        f"{units.format_flops_per_s(known.flops_per_s, 2)} ({known.source})"
    )


def _objectives(slo: object) -> str:
    if not isinstance(slo, dict):
        return "none"
    told = [
        f"{name.removesuffix('_s').upper()} ≤ {units.format_duration(value)}"
        for name, value in slo.items()
        if isinstance(value, int | float)
    ]
    return ", ".join(told) or "none"


def time_text(bench: BenchRecord, report_s: Seconds = 0.0) -> str:
    """Where a bench's wall time went; what is none of the engine's is kvbench's own.

    ``report_s`` is the time that its report took, which the record can't hold.
    """
    parts = (bench.server_startup_s, bench.load_s, bench.server_stop_s)
    if bench.wall_s is None or any(part is None for part in parts):
        return f"{units.format_duration(bench.wall_s)} in all ({bench.status})"
    startup_s, load_s, stop_s = (part or 0.0 for part in parts)
    asked_s, wall_s = bench.quality_s or 0.0, bench.wall_s + report_s
    own_s = wall_s - startup_s - load_s - asked_s - stop_s
    share = units.format_percent(own_s / wall_s if wall_s else None)
    told = [
        f"servers starting {units.format_duration(startup_s)}",
        f"under load {units.format_duration(load_s)}",
        *([f"asked about quality {units.format_duration(asked_s)}"] if asked_s else []),
        f"stopping {units.format_duration(stop_s)}",
        f"kvbench itself {units.format_duration(own_s)} ({share})",
    ]
    return f"{units.format_duration(wall_s)} in all: {', '.join(told)}"


# ── KV pools ────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class PoolLine:
    """One variant's pool, predicted and granted, as written."""

    variant: str
    dtype: str
    backend: str
    bytes_per_token: str
    predicted: str
    granted: str
    error: str
    concurrency: str
    note: str


def pools(analysis: Analysis) -> tuple[PoolLine, ...]:
    """The KV pool of every variant."""
    return tuple(_pool(kv, skipped=kv.variant in analysis.skipped) for kv in analysis.kv)


def _pool(kv: KvComparison, *, skipped: bool) -> PoolLine:
    predicted = kv.predicted.kv_cache_tokens if kv.predicted else None
    per_token = kv.granted.kv_bytes_per_token
    if per_token is None and kv.predicted is not None:
        per_token = kv.predicted.kv_bytes_per_token
    return PoolLine(
        variant=kv.variant,
        dtype=kv.kv_cache_dtype or units.DASH,
        backend=kv.attention_backend or units.DASH,
        bytes_per_token=f"{units.format_count(per_token)} B" if per_token else units.DASH,
        predicted=units.format_count(predicted),
        granted=units.format_count(kv.granted.kv_cache_tokens),
        error=_error(kv),
        concurrency=units.format_count(kv.granted.max_concurrency, 2),
        note=_launches(kv) or kv.predicted_reason or ("modelled: skipped here" if skipped else ""),
    )


def _error(kv: KvComparison) -> str:
    if kv.error_tokens is None:
        return units.DASH
    if kv.error_tokens == 0:
        return "none"
    sign = "+" if kv.error_tokens > 0 else ""
    within = ", within a block" if kv.agrees else ""
    share = units.format_percent(kv.error_fraction, 2)
    return f"{sign}{units.format_count(kv.error_tokens)} ({share}{within})"


def _launches(kv: KvComparison) -> str:
    granted = {tokens for _, tokens in kv.granted_tokens_by_launch}
    if len(granted) < 2:
        return ""
    low, high = units.format_count(min(granted)), units.format_count(max(granted))
    return f"differs between launches: {low} to {high}"


# ── trials ──────────────────────────────────────────────────────────────────────────────────


def trials_of(
    bench: BenchRecord,
    trials: Sequence[TrialRecord],
    analysis: Analysis,
    run_dir: Path,
    page_dir: Path,
) -> tuple[TrialLine, ...]:
    """Every trial of the run in running order, those that never began included."""
    records = {trial.run.trial.trial_id: trial for trial in trials}
    known = {trial.trial_id: trial for trial in analysis.trials}
    each = request_table.rows_per_trial(len(bench.trial_ids))
    return tuple(
        _trial(records[trial_id], known.get(trial_id), run_dir / trial_id, page_dir, each)
        if trial_id in records
        else _not_begun(trial_id)
        for trial_id in bench.trial_ids
    )


def _trial(
    record: TrialRecord, trial: TrialAnalysis | None, folder: Path, page_dir: Path, each: int
) -> TrialLine:
    run, server = record.run, record.run.server
    warnings = server.log_warnings if server else ()
    return TrialLine(
        trial_id=run.trial.trial_id,
        variant=run.trial.variant,
        workload=trial.workload_label if trial else units.DASH,
        repeat=units.format_count(run.trial.repeat + 1),
        status=HOW_ENDED[run.status],
        reason=run.reason or "",
        counts=_counts(record),
        facts=_server_facts(server),
        command=command_text(server.command, server.env) if server and server.command else "",
        log_lines=server.log_kv_lines[:MAX_LOG_LINES] if server else (),
        warnings=warnings[:MAX_LOG_LINES],
        warnings_left=max(0, len(warnings) - MAX_LOG_LINES),
        log_tail=_tail(folder) if run.status == "failed" else "",
        verdicts=_verdicts(trial),
        requests=request_table.table(record.requests, each),
        requests_link=link(folder / store.REQUESTS_FILE, page_dir),
        links=_links(folder, page_dir),
    )


def _verdicts(trial: TrialAnalysis | None) -> tuple[tuple[str, str, str], ...]:
    """Each reason once, with every figure that it touches."""
    return tuple(
        ("all figures" if fields == ("*",) else ", ".join(fields), verdict.verdict, verdict.reason)
        for verdict, fields in grouped(trial.verdicts if trial else ())
    )


def _not_begun(trial_id: str) -> TrialLine:
    nothing = units.DASH
    why = "the run ended before this trial was begun"
    return TrialLine(
        trial_id, nothing, nothing, nothing, "not begun", why, nothing,
        (), "", (), (), 0, "", (), request_table.table((), 0), "", (),
    )  # fmt: skip


def _counts(record: TrialRecord) -> str:
    if not record.requests and record.run.status in ("skipped", "failed"):
        return units.DASH
    measured = [request for request in record.requests if request.phase == "measured"]
    done = sum(latency.is_completed(request) for request in measured)
    planned = record.run.trial.workload.get("num_prompts")
    torn = f", {units.counted(record.damaged_lines, 'line')} torn" if record.damaged_lines else ""
    return f"{units.format_count(done)} of {units.format_count(planned)}{torn}"


def _server_facts(server: ServerFacts | None) -> tuple[Fact, ...]:
    if server is None:
        return ()
    told = (
        ("Attention backend", server.attention_backend),
        ("Start-up", units.format_duration(server.startup_s)),
        ("CPU binding", server.cpu_binding),
        ("Resident memory once loaded", units.format_bytes(server.rss_loaded_bytes)),
        ("Device memory before start", units.format_bytes(server.device_used_before_bytes)),
        ("Device memory once loaded", units.format_bytes(server.device_used_loaded_bytes)),
    )
    return tuple(Fact(name, text) for name, text in told if text and text != units.DASH)


def _tail(folder: Path) -> str:
    lines = store.read_text_tail(folder / store.LOG_FILE, 4096).splitlines()
    return "\n".join(lines[-20:])


def _links(folder: Path, page_dir: Path) -> tuple[tuple[str, str], ...]:
    names = (store.RUN_FILE, store.REQUESTS_FILE, store.SAMPLES_FILE, store.LOG_FILE)
    return tuple(
        (name, link(folder / name, page_dir)) for name in names if (folder / name).is_file()
    )


def link(target: Path, page_dir: Path) -> str:
    """A relative address from the page to a file, safe inside an attribute."""
    return quote(Path(os.path.relpath(target.resolve(), page_dir.resolve())).as_posix())
