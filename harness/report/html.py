"""The page: one self-contained file that asks nothing of any network.

Method: Jinja2 with autoescape and strict undefined; the only text that enters unescaped is the
SVG that this program drew (its letters are outlines, its comments are gone), and the style sheet
and the script that ship with it. A content security policy in the page forbids loads, and every
script but that one, which it knows by its hash, so that even a hole in the escaping would not run.

Not covered: which words and figures stand in the page (``sentence``, ``tables``, ``evidence``).
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness import store
from harness.analysis.claimable import BEYOND, ratios_with_intervals
from harness.analysis.results import Analysis
from harness.characters import harmless
from harness.record import BenchRecord, TrialRecord
from harness.report import claims, evidence, tables
from harness.report.plate import Plate
from harness.report.section import Drawn
from harness.report.sentence import OF_THE_RUN, OF_VARIANTS, Answer, answer

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup


@lru_cache(maxsize=1)
def _templates() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    made = Environment(
        loader=PackageLoader("harness.report", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {
        "ticked": _ticked,
        "breakable": _breakable,
        "unbroken": _unbroken,
        "united": _united,
    }
    return made


def _ticked(text: object) -> Markup:
    """Escaped text, in which `what stands between backticks` is code."""
    from markupsafe import escape

    return own(re.sub("`([^`\n]+)`", r"<code>\1</code>", str(escape(text))))


def _breakable(text: object) -> Markup:
    """Escaped text whose long names may be broken behind a dot, an underscore or a sign."""
    from markupsafe import escape

    return own(re.sub(r"(?<=\w)([._=/])(?=\w)", r"\1<wbr>", str(escape(text))))


def _united(text: object) -> str:
    """A number stays with its unit."""
    return re.sub(r"(?<=\d) (?=\S)", "\N{NO-BREAK SPACE}", str(text))


def _unbroken(text: object) -> str:
    """A figure that breaks before an interval, a share or an arrow, and nowhere else."""
    return re.sub(r" (?![\[(→])", "\N{NO-BREAK SPACE}", str(text))


def render(template: str, context: dict[str, Any]) -> str:
    """Fill one of our templates; everything in ``context`` is escaped but ``Markup``.

    A log's colours would act on the terminal of whoever reads the page's source: characters that
    act become U+FFFD.
    """
    filled = _templates().get_template(template).render(context)
    return harmless(filled)


@lru_cache(maxsize=1)
def _script() -> tuple[str, str]:
    """The script that sorts and filters tables, and its hash as a policy names it."""
    environment = _templates()
    assert environment.loader is not None  # noqa: S101 - it is ours
    text = environment.loader.get_source(environment, "table.js")[0]
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return text, f"sha256-{digest}"


def own(markup: str) -> Markup:
    """Markup that we made, not to be escaped again: pictures' SVG, and the page's script.

    Letters in a picture are outlines and its ids are ours, so nothing of a user's is in it.
    """
    from markupsafe import Markup

    return Markup(markup)  # noqa: S704 - what comes from users was never in it


def page(
    bench: BenchRecord,
    trials: Sequence[TrialRecord],
    analysis: Analysis,
    plates: Sequence[Plate],
    sections: Sequence[Drawn] = (),
    *,
    run_dir: Path,
    folder: Path,
) -> str:
    """Return the whole page as text; links to the raw files are relative to ``folder``."""
    script, script_hash = _script()
    trial_lines = evidence.trials_of(bench, trials, analysis, run_dir, folder)
    opening = (*OF_THE_RUN, *OF_VARIANTS)
    context: dict[str, Any] = {
        "bench": bench,
        "analysis": analysis,
        "answer": _opening(analysis, sections),
        "above": [each for each in sections if _is_above(each)],
        "below": [each for each in sections if not _is_above(each)],
        "told": claims.claims,
        "script": own(script),
        "script_hash": script_hash,
        "inline": own,
        "tables": [t for c in analysis.comparisons if (t := tables.table(c)).rows],
        "many": ratios_with_intervals(analysis),
        "beyond": BEYOND,
        "pools": evidence.pools(analysis),
        "plates": [(plate, own(plate.picture.inline_svg)) for plate in plates],
        "machine": evidence.machine(bench.environment),
        "setup": evidence.setup(bench, trials, analysis),
        "trials": trial_lines,
        "counts": _counts(trial_lines),
        "cautions": [c.text for c in analysis.cautions if c.code not in opening],
        "skipped": dict(bench.skipped) | dict(analysis.skipped),
        "record_link": evidence.link(run_dir / store.BENCH_FILE, folder),
        **_again(bench, run_dir),
        "stamps": sorted({t.stamp for t in analysis.trials if t.status == "sealed"}),
    }
    return render("report.html.j2", context)


def _again(bench: BenchRecord, run_dir: Path) -> dict[str, str]:
    """The commands that measure again and draw again; kvbench of no known revision is installed."""
    write = evidence.in_clone if bench.environment.git_revision else evidence.command_text
    report = write(["kvbench", "report", str(run_dir)])
    return {"bench_command": write(bench.command), "report_command": report}


def _is_above(drawn: Drawn) -> bool:
    """Whether a section stands before the scoreboard."""
    return drawn.section.opens or drawn.section.first


def _opening(analysis: Analysis, sections: Sequence[Drawn]) -> Answer:
    """The answer; a section that opens the page gives its lead in place of the general one."""
    found = answer(analysis)
    first = next((drawn.section for drawn in sections if drawn.section.opens), None)
    if first is None or found.withdrawn:
        return found
    return Answer(first.lead, found.points if first.keeps_points else (), found.limits)


def _counts(lines: Sequence[evidence.TrialLine]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for line in lines:
        counts[line.status] = counts.get(line.status, 0) + 1
    return counts
