"""Builds the pages that the browser tests open: real runs, hostile texts, joined and compared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from typer.testing import CliRunner

from harness.cli.app import build
from harness.report.build import build_report
from tests import records
from tests.report.stored import store_run, unpacked

SCRIPT = "<script>alert(1)</script>"
IMAGE = '<img src="http://127.0.0.1:9/x" onerror="alert(2)">'
NAMES = ("report", "hostile", "scoreboard", "compare")
#: A run of eleven variants, whose tables are wider than any screen or sheet.
WIDE = "many-variants"


def build_pages(root: Path) -> dict[str, Path]:
    """Every page by its name."""
    runs = [unpacked(name, root) for name in ("fp8_vs_fp16", "smoke", "kv_dtypes")]
    return {
        "report": build_report(runs[0], reports_root=root / "reports").html,
        WIDE: build_report(runs[2], reports_root=root / "reports").html,
        "hostile": _hostile(root / "hostile"),
        "scoreboard": _said(root, "report", "--scoreboard", *map(str, runs)),
        "compare": _compared(root / "compare"),
    }


def _hostile(root: Path) -> Path:
    """Markup wherever a user's file or a server's answer can put it; one trial failed."""
    bench, trials = records.bench(1, name=SCRIPT, variants=("fp16", SCRIPT))
    evil = [
        replace(
            trial,
            run=replace(trial.run, reason=IMAGE),
            requests=tuple(
                replace(r, text=IMAGE, finish_reason=SCRIPT, error=IMAGE if r.index == 3 else None)
                for r in trial.requests
            ),
        )
        for trial in trials
    ]
    evil[-1] = records.failed(evil[-1], SCRIPT)
    bench = replace(
        bench,
        command=("kvbench", "bench", SCRIPT),
        skipped={IMAGE: SCRIPT},
        scenario={**bench.scenario, "question": SCRIPT, "model": IMAGE},
        environment=replace(bench.environment, cpu=IMAGE, git_revision=SCRIPT),
    )
    run = store_run(bench, evil, root / "results")
    return build_report(run, reports_root=root / "reports").html


def _compared(root: Path) -> Path:
    """Two built runs beside one another, the second with fewer repeats."""
    ids = []
    for repeats in (3, 2):
        bench, trials = records.bench(repeats)
        ids.append(f"20300102-030405-{repeats}")
        store_run(replace(bench, run_id=ids[-1]), trials, root / "results")
    return _said(root, "compare", *ids)


def _said(root: Path, *words: str) -> Path:
    """The page that a command of ours wrote below ``root``."""
    places = ["--out", str(root / "results"), "--reports", str(root / "reports")]
    before = set(root.rglob("*.html"))
    done = CliRunner().invoke(build(words), [*words, *places], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return _only(sorted(set(root.rglob("*.html")) - before))


def _only(paths: Sequence[Path]) -> Path:
    assert len(paths) == 1, paths
    return paths[0]
