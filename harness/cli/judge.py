"""``kvbench judge``: have a stored run's answers compared by a judge; nothing is run again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from harness.analysis.judging import judge_outcome
from harness.analysis.quality_results import JudgeOutcome
from harness.analysis.run_json import plain
from harness.cli.runs import find
from harness.errors import KvbenchError
from harness.execute.judging import KEY_VARIABLES, api_key, check_url, judge_stored
from harness.quality.judge import JudgeTarget
from harness.report.build import REPORTS_ROOT, build_report
from harness.report.quality_text import judge_sentences
from harness.store import DEFAULT_ROOT, read_quality


def judge(
    run: Annotated[str, typer.Argument(help="A run's folder, its id, or a scenario's name.")],
    judge_url: Annotated[str, typer.Option(help="OpenAI-compatible server (http://host/v1).")],
    judge_model: Annotated[str, typer.Option(help="The judge's model name there.")],
    margin: Annotated[
        float, typer.Option(min=0.001, max=0.999, help="Net loss still called non-inferior.")
    ] = 0.10,
    concurrency: Annotated[int, typer.Option(min=1, max=256, help="Questions at once.")] = 4,
    out: Annotated[Path, typer.Option(help="Where runs are stored.")] = DEFAULT_ROOT,
    reports: Annotated[Path, typer.Option(help="Where the report goes.")] = REPORTS_ROOT,
    as_json: Annotated[bool, typer.Option("--json", help="Print the outcome as JSON.")] = False,
) -> None:
    """Judge a stored run's answers, the judge itself first, and rebuild its report.

    The key is read from KVBENCH_JUDGE_API_KEY or OPENAI_API_KEY and never stored.
    """
    folder = find(run, out)
    url = check_url(judge_url)
    target = JudgeTarget(url, judge_model, api_key(), concurrency=concurrency)
    head = judge_stored(folder, target, margin=margin, progress=_progress)
    records = read_quality(folder)
    record = next(j for j in records.judges if j.head.judge_id == head.judge_id)
    outcome = judge_outcome(record, records)
    if head.status != "sealed":
        raise KvbenchError(
            head.reason or "the judge could not be asked",
            where=url,
            next_move=f"see that the server answers there, and that {' or '.join(KEY_VARIABLES)} "
            "holds its key; the same command goes on where it stopped",
        )
    _tell(outcome, build_report(folder, reports_root=reports).html, as_json=as_json)


def _progress(done: int, total: int) -> None:
    if done == total or done % 20 == 0:
        typer.echo(f"judged {done}/{total}", err=True)


def _tell(outcome: JudgeOutcome, page: Path, *, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps({**plain(outcome), "report": str(page)}, indent=2))
        return
    for sentence in judge_sentences(outcome):
        typer.echo(sentence)
    typer.echo(f"report: {page}")
