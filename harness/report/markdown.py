"""A comparison of runs as GitHub markdown, fit for a pull request.

Method: headings, the lead and whole tables of ours stand as they are; whatever comes from a file or
a server (names, loads, reasons, values) stands in code spans, in which GitHub runs no markup, links
nothing and notifies nobody, and so does every sentence that holds such a text (points, limits,
notes). Control characters and those that turn the reading direction are taken out first; in a
table, where a bar ends a cell even inside a span, it gets a backslash. Not covered: pictures, which
a comment can't carry; the page has them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from harness.characters import harmless
from harness.report.run_comparison_text import CheckText, PairText, RunComparisonText
from harness.report.tables import CellText, RowText
from harness.report.terminal import ROWS
from harness.units import counted

#: GitHub cuts a comment at 65,536 characters; what is longer is cut here, and says so.
MAX_CHARACTERS = 60_000
_MAX_REASON = 300
_MARKS = {"pass": "✅", "fail": "❌", "inconclusive": "❔", "not applicable": "➖"}


def code(text: str) -> str:
    """Foreign text as a code span; nothing is left out of it."""
    line = harmless(" ".join(text.split())) or "—"
    longest = max((len(run) for run in re.findall(r"`+", line)), default=0)
    fence = "`" * (longest + 1)
    pad = " " if longest else ""
    return f"{fence}{pad}{line}{pad}{fence}"


def markdown(text: RunComparisonText) -> str:
    """Return the whole comparison; the longest parts are folded, the end is cut if it must be."""
    parts = [
        "## kvbench compare",
        *_gate(text),
        text.lead,
        *_points(text),
        "### The runs",
        *_runs(text),
        *_differences(text),
        *(part for pair in text.pairs for part in _pair(pair)),
        *_limits(text),
    ]
    whole = "\n\n".join(parts) + "\n"
    if len(whole) <= MAX_CHARACTERS:
        return whole
    kept = whole[:MAX_CHARACTERS].rpartition("\n\n")[0]
    # A fold that is open at the cut would swallow what follows.
    open_folds = kept.count("<details>") - kept.count("</details>")
    return f"{kept}\n\n{'</details>' * open_folds}\n\nCut here: the page holds the rest.\n"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    cells = ([cell.replace("|", "\\|") for cell in line] for line in lines)
    return "\n".join(f"| {' | '.join(line)} |" for line in cells)


def _gate(text: RunComparisonText) -> Iterator[str]:
    if text.gate_answer is None:
        return
    yield f"**{text.gate_answer}**"
    if text.checks:
        head = ("", "rule", "run", "variant and load", "change [95 %]", "repeats A / run", "why")
        yield _table(head, (_check(check) for check in text.checks))


def _check(check: CheckText) -> tuple[str, ...]:
    doubts = "".join(f"; suspect: {code(_short(doubt))}" for doubt in check.doubts[:1])
    return (
        f"{_MARKS[check.verdict]} {check.verdict}",
        code(check.rule),
        check.run,
        f"{code(check.variant)} {code(check.load)}",
        check.change,
        check.replicates,
        code(_short(check.reason)) + doubts,
    )


def _points(text: RunComparisonText) -> Iterator[str]:
    if text.points:
        yield "\n".join(f"- {code(point)}" for point in text.points)


def _runs(text: RunComparisonText) -> Iterator[str]:
    head = ("run", "id", "scenario", "profile", "device", "model", "engine", "commit", "trials")
    rows = (
        (
            f"{run.label} (baseline)" if run is text.runs[0] else run.label,
            *map(
                code,
                (run.run_id, run.scenario, run.profile, run.device, run.model, run.engine),
            ),
            code(run.commit),
            run.trials,
        )
        for run in text.runs
    )
    yield _table(head, rows)


def _differences(text: RunComparisonText) -> Iterator[str]:
    yield "### What differs"
    if not text.differences:
        yield "Nothing that the records tell."
        return
    head = ("key", *(run.label for run in text.runs))
    rows = (
        (code(one.key) + (" **unlike**" if one.refused else ""), *map(code, one.values))
        for one in text.differences
    )
    yield _table(head, rows)


def _pair(pair: PairText) -> Iterator[str]:
    yield f"### {code(pair.variant)} {code(pair.load)}"
    ends = "; ".join(code(end) for end in pair.ends)
    yield f"Trials: {ends}; {pair.method}."
    if pair.table is None:
        return
    shown = [row for row in pair.table.rows if row.metric in ROWS]
    yield _figures(pair, shown)
    rest = [row for row in (*pair.table.rows, *pair.table.more) if row not in shown]
    if rest:
        summary = f"<details><summary>{counted(len(rest), 'more figure')}</summary>"
        yield f"{summary}\n\n{_figures(pair, rest)}\n\n</details>"
    if pair.table.notes:
        yield "\n".join(f"{note.number}. {code(_short(note.text))}" for note in pair.table.notes)


def _short(reason: str) -> str:
    """A reason whose cut, where a comment has no room for all of it, can be seen."""
    return reason if len(reason) <= _MAX_REASON else f"{reason[:_MAX_REASON]}…"


def _figures(pair: PairText, rows: Sequence[RowText]) -> str:
    labels = pair.table.variants if pair.table is not None else ()
    others = [part for label in labels[1:] for part in (label, f"{label} / A [95 %]", "verdict")]
    head = ("figure", *labels[:1], *others)
    return _table(head, (_figure_row(row) for row in rows))


def _figure_row(row: RowText) -> tuple[str, ...]:
    first, *rest = row.cells
    told = [part for cell in rest for part in (_value(cell), cell.ratio or "—", _verdict(cell))]
    better = f" ({row.better})" if row.better else ""
    return (f"{row.label}{better}", _value(first), *told)


def _value(cell: CellText) -> str:
    marks = "".join(f"<sup>{number}</sup>" for number in cell.notes)
    return f"{cell.value}{marks}"


def _verdict(cell: CellText) -> str:
    doubt = "suspect" if cell.judgement == "suspect" else ""
    return ", ".join(part for part in (cell.effect, doubt) if part) or "—"


def _limits(text: RunComparisonText) -> Iterator[str]:
    if text.limits:
        yield "### Before relying on these figures"
        yield "\n".join(f"- {code(limit)}" for limit in text.limits)
