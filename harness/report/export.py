"""A run → files for other programs: JSON under the names of ``vllm bench serve``, and CSV.

Method: one document per trial, whatever became of it; the same fields are a CSV's columns. A
``.json`` file holds a list, as the summary of ``vllm bench sweep`` does; a folder holds one file
per measured trial, as ``vllm bench serve --save-result`` leaves them. Everything is written beside
and moved into place when it is whole. In a CSV a text that a spreadsheet would take for a formula
gets an apostrophe in front of it. Not covered: how a figure is defined (``analysis.bench_serve``)
and the raw files (``docs/results-format.md``).
"""

from __future__ import annotations

import csv
import json
import math
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from harness.analysis import bench_serve, latency
from harness.analysis.results import Analysis, TrialAnalysis
from harness.analysis.verdict import grouped, worst
from harness.characters import harmless
from harness.errors import InputError, StoreError
from harness.record import BenchRecord, RequestRecord, TrialRecord
from harness.scenario.load import slugify

#: Of the exported files; a field that changes its meaning or goes away raises it.
SCHEMA_VERSION = 1

#: The ending of a target → what it becomes.
TRIAL_FORMS = {
    ".json": "FILE.json (a list of trials)",
    ".csv": "FILE.csv (a row per trial)",
    "/": "FOLDER/ (a file per measured trial)",
}
REQUEST_FORMS = {".csv": "FILE.csv (a row per request)"}

#: Where a spreadsheet begins to calculate, the full-width forms included; in some countries
#: programs cut a line at semicolons too.
_FORMULA = re.compile(r"(\A|[;\t])(\s*[=+\-@＝＋－＠])")

Row = dict[str, Any]


def check_target(target: str, run_dir: Path, forms: Mapping[str, str] = TRIAL_FORMS) -> None:
    """Refuse a target that can't be an export, before anything is computed.

    Raises:
        InputError: its name says no form, or it would lie among the stored records.
    """
    path, form = Path(target), _form(target)
    if not path.name or form not in forms:
        raise InputError(
            f"can't tell the form of the export {target[:200]!r}", legal=forms.values()
        )
    if path.resolve().is_relative_to(run_dir.resolve()):
        raise InputError(
            "an export can't lie among the stored records of its run",
            where=target,
            next_move="choose a place outside the run's folder",
        )
    if form == "/" and path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise InputError(
            "this is not an empty folder", where=target, next_move="name a new folder or empty it"
        )


def _form(target: str) -> str:
    is_folder = target.endswith("/") or Path(target).is_dir()
    return "/" if is_folder else Path(target).suffix.lower()


def export_trials(
    target: str,
    bench: BenchRecord,
    trials: Sequence[TrialRecord],
    analysis: Analysis,
    *,
    detailed: bool = False,
) -> tuple[Path, ...]:
    """Write the run's trials as ``target`` says (``TRIAL_FORMS``); returns the files.

    ``detailed`` adds the per-request lists of ``--save-detailed`` to JSON.

    Raises:
        StoreError: it can't be written; what lay there is untouched.
    """
    path, form = Path(target), _form(target)
    known = {trial.trial_id: trial for trial in analysis.trials}
    pairs = [(trial, known.get(trial.run.trial.trial_id)) for trial in trials]
    if form == ".csv":
        _write(path, lambda stream: _table(stream, [trial_row(bench, *pair) for pair in pairs]))
        return (path,)
    documents = (
        trial_row(bench, *pair) | (bench_serve.lists(pair[0]) if detailed else {})
        for pair in pairs
        if form != "/" or pair[0].run.status == "sealed"
    )
    if form == "/":
        return _write_folder(path, documents)
    _write(path, lambda stream: _dump(list(documents), stream))
    return (path,)


def export_requests(
    target: str, bench: BenchRecord, trials: Sequence[TrialRecord], analysis: Analysis
) -> Path:
    """Write every stored request, warm-ups included, as a row of one CSV file.

    Raises:
        StoreError: it can't be written; what lay there is untouched.
    """
    labels = {trial.trial_id: trial.workload_label for trial in analysis.trials}
    rows = (
        request_row(bench, trial, labels.get(trial.run.trial.trial_id), request)
        for trial in trials
        for request in sorted(trial.requests, key=lambda request: request.sent_s)
    )
    path = Path(target)
    _write(path, lambda stream: _table(stream, rows, REQUEST_COLUMNS))
    return path


# ── what is written ─────────────────────────────────────────────────────────────────────────


def trial_row(bench: BenchRecord, trial: TrialRecord, known: TrialAnalysis | None) -> Row:
    """One trial flat: which it is, the fields of ``vllm bench serve``, the pool, the doubts."""
    summary = known.summary if known else None
    row = {
        **_identity(bench, trial),
        "workload": known.workload_label if known else None,
        "status": trial.run.status,
        "reason": trial.run.reason,
        **bench_serve.fields(trial, summary),
        **_pool(trial, known),
        "verdict": worst(known.verdicts) if known else None,
        "verdict_reasons": _doubts(known),
    }
    return {name: _finite(value) for name, value in row.items()}


def _finite(value: Any) -> Any:
    """JSON knows no infinity; a rate over a vanishing time is no figure."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _identity(bench: BenchRecord, trial: TrialRecord) -> Row:
    facts, server = trial.run.trial, trial.run.server
    return {
        "schema_version": SCHEMA_VERSION,
        "kvbench_version": bench.environment.kvbench_version,
        "run_id": bench.run_id,
        "scenario": bench.scenario_name,
        "profile": bench.environment.profile,
        "engine": facts.engine,
        "engine_version": server.engine_version if server else None,
        "stamp": facts.stamp,
        "trial_id": facts.trial_id,
        "variant": facts.variant,
        "is_baseline": facts.is_baseline,
        "repeat": facts.repeat,
        "launch": facts.launch,
    }


def _pool(trial: TrialRecord, known: TrialAnalysis | None) -> Row:
    """The KV pool as granted and as predicted, and what was seen of it under load."""
    granted, predicted = known.granted if known else None, known.theory if known else None
    summary = known.summary if known else None
    theory = predicted.kv if predicted else None
    return {
        "kv_cache_dtype": predicted.kv_cache_dtype if predicted else None,
        "kv_bytes_per_token": theory.kv_bytes_per_token if theory else None,
        "kv_block_size": granted.block_size if granted else None,
        "kv_num_blocks": granted.num_blocks if granted else None,
        "kv_cache_tokens": granted.kv_cache_tokens if granted else None,
        "kv_cache_tokens_predicted": theory.kv_cache_tokens if theory else None,
        "kv_max_concurrency": granted.max_concurrency if granted else None,
        **{name: getattr(summary, name, None) for name in _SUMMARY_FIGURES},
        "damaged_lines": trial.damaged_lines,
    }


_SUMMARY_FIGURES = (
    "kv_usage_peak",
    "kv_usage_mean",
    "preemptions",
    "prefix_cache_hit_rate",
    "requests_running_peak",
    "requests_waiting_peak",
    "rss_peak_bytes",
    "gpu_used_peak_bytes",
    "energy_j",
)


def _doubts(known: TrialAnalysis | None) -> str | None:
    """Every verdict that is not valid, with the figures that it touches; None without one."""
    told = [
        f"{verdict.verdict}: {verdict.reason} ({', '.join(fields)})"
        for verdict, fields in grouped(known.verdicts if known else ())
        if verdict.verdict != "valid"
    ]
    return "; ".join(told) or None


_RECORDED = (
    "index",
    "phase",
    "prompt_tokens_planned",
    "output_tokens_planned",
    "planned_send_s",
    "sent_s",
    "first_chunk_s",
    "last_chunk_s",
    "finished_s",
    "prompt_tokens",
    "output_tokens",
    "cached_prompt_tokens",
    "finish_reason",
    "error",
    "text",
)

REQUEST_COLUMNS = (
    *("schema_version", "run_id", "trial_id", "variant", "workload", "repeat", "launch"),
    *_RECORDED[:-3],
    *("ttft_s", "tpot_s", "e2el_s", "chunks"),
    *_RECORDED[-3:],
)


def request_row(
    bench: BenchRecord, trial: TrialRecord, workload: str | None, request: RequestRecord
) -> Row:
    """One request: its trial, what was recorded of it, its latencies in seconds."""
    facts = trial.run.trial
    return {
        "schema_version": SCHEMA_VERSION,
        "run_id": bench.run_id,
        "trial_id": facts.trial_id,
        "variant": facts.variant,
        "workload": workload,
        "repeat": facts.repeat,
        "launch": facts.launch,
        **{name: getattr(request, name) for name in _RECORDED},
        "ttft_s": latency.ttft(request),
        "tpot_s": latency.tpot(request),
        "e2el_s": latency.e2el(request),
        "chunks": len(request.chunk_times_s),
    }


# ── how it is written ───────────────────────────────────────────────────────────────────────


def cell(value: object) -> str:
    """A CSV's cell: unknown is empty, numbers are whole, no text is a formula."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if not isinstance(value, str):
        return str(value)
    return _FORMULA.sub(r"\1'\2", harmless(value))


def _table(stream: IO[str], rows: Iterable[Row], columns: Sequence[str] = ()) -> None:
    """Rows of equal keys below their names; without rows the names of ``columns`` alone."""
    writer = csv.writer(stream, lineterminator="\n")
    if columns:
        writer.writerow(columns)
    for number, row in enumerate(rows):
        if number == 0 and not columns:
            columns = tuple(row)
            writer.writerow(columns)
        writer.writerow([cell(row[name]) for name in columns])


def _dump(value: Any, stream: IO[str]) -> None:
    json.dump(value, stream, allow_nan=False)
    stream.write("\n")


@contextmanager
def _beside(path: Path) -> Iterator[Path]:
    """A free place in a new folder beside ``path``, moved to ``path`` when the block is done.

    What lies at ``path`` stays if anything fails, and a neighbour's file is never taken for ours.

    Raises:
        StoreError: it can't be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=".kvbench-export-") as folder:
            whole = Path(folder) / "whole"
            yield whole
            whole.replace(path)
    except OSError as error:
        raise StoreError(
            f"can't write the export: {error.strerror}",
            where=str(path),
            next_move="choose another place; what lay there before is untouched",
        ) from error


def _write(path: Path, fill: Callable[[IO[str]], None]) -> None:
    """Fill a file that appears at ``path`` when it is whole."""
    with (
        _beside(path) as whole,
        whole.open("x", encoding="utf-8", errors="replace", newline="") as stream,
    ):
        fill(stream)


def _write_folder(path: Path, documents: Iterator[Row]) -> tuple[Path, ...]:
    """One file per document in a new folder, which appears when all are in it."""
    names = []
    with _beside(path) as whole:
        whole.mkdir()
        for document in documents:
            names.append(f"{_file_name(document['trial_id'])}.json")
            with (whole / names[-1]).open("x", encoding="utf-8") as stream:
                _dump(document, stream)
    return tuple(path / name for name in names)


def _file_name(trial_id: str) -> str:
    """A trial's id, which a damaged record may have made a path."""
    return trial_id if re.fullmatch(r"\w[\w.-]*", trial_id) else slugify(trial_id)
