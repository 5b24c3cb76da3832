from __future__ import annotations

import re
from dataclasses import replace

import pytest
from markdown_it import MarkdownIt
from markdown_it.token import Token

from harness.analysis.gate import decide, parse_rule
from harness.analysis.run_comparison import compare_runs
from harness.record import TrialRecord
from harness.report.markdown import (
    _MAX_REASON,
    MAX_CHARACTERS,
    _short,
    _table,
    code,
    markdown,
)
from harness.report.run_comparison_text import run_comparison_text
from tests import records
from tests.analysis import runs
from tests.analysis.runs import Stored

A = runs.run()
B = runs.again(A)
HOSTILE = (
    "`|</td>\n<script>alert(1)</script> [x](http://evil) ![y](http://evil) @team #1 \u202e\x1b[2J"
)


def written(*stored: Stored, rules: tuple[str, ...] = (), force: bool = False) -> str:
    run_comparison = compare_runs(stored, force_unlike=force)
    gate = decide(run_comparison, [parse_rule(rule) for rule in rules]) if rules else None
    return markdown(run_comparison_text(run_comparison, gate))


def tokens(text: str) -> list[Token]:
    """What a reader of GitHub's dialect makes of it, inline parts laid open."""
    found = MarkdownIt("commonmark").enable("table").parse(text)
    return [inner for token in found for inner in (token, *(token.children or ()))]


def tables(text: str) -> list[list[str]]:
    """The lines of each table."""
    return [re.findall(r"^\|.*\|$", part, re.M) for part in text.split("\n\n") if part[:1] == "|"]


def test_every_table_has_as_many_cells_in_each_row_as_in_its_head() -> None:
    text = written(A, runs.on_machine(runs.all_slower(B, 2.0), cpu="a|b"), rules=("tpot_s.p50>1%",))
    found = tables(text)
    # The gate, the runs, what differs; two pairs with their decisive and their other figures.
    assert len(found) == 3 + 2 * 2
    for lines in found:
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in lines}) == 1
    assert sum(token.type == "table_open" for token in tokens(text)) == len(found)


def test_the_gate_stands_first_with_a_row_per_check() -> None:
    text = written(A, runs.all_slower(B, 2.0), rules=("output_throughput<-5%",))
    assert text.startswith(
        "## kvbench compare\n\n**The gate answers fail: of 2 checks 2 fail.**\n\n| "
    )
    assert text.count("| ❌ fail | `output_throughput<-5%` | B | `fp16` ") == 1


def test_nothing_that_users_or_servers_named_is_read_as_markup() -> None:
    bench, trials = A

    def named(trial: TrialRecord) -> TrialRecord:
        facts = trial.run.trial
        if facts.variant == "fp16":
            return trial
        return runs.with_run(trial, lambda r: replace(r, trial=replace(facts, variant=HOSTILE)))

    scenario = {**bench.scenario, "variants": {"fp16": {"flags": {}}, HOSTILE: {"flags": {}}}}
    one = (replace(bench, scenario=scenario, scenario_name=HOSTILE), tuple(map(named, trials)))
    other = runs.on_machine(runs.again(one, HOSTILE), cpu=HOSTILE)
    failed = runs.with_trials(
        other,
        lambda t: records.failed(t, HOSTILE) if t.run.trial.variant == HOSTILE else t,
    )
    text = written(one, failed, rules=("output_throughput<-5%",))
    found = tokens(text)
    kinds = {token.type for token in found}
    assert not kinds & {"link_open", "image", "autolink"}
    html = [token.content for token in found if token.type in ("html_inline", "html_block")]
    assert all(re.fullmatch(r"</?(details|summary|sup)>.*", part.strip()) for part in html)
    assert not any("script" in part for part in html)
    # Outside code spans nothing is said to anyone.
    spoken = "".join(token.content for token in found if token.type == "text")
    assert "@" not in spoken
    assert "#1" not in spoken
    assert "\x1b" not in text
    assert "\u202e" not in text
    for lines in tables(text):
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in lines}) == 1


@pytest.mark.parametrize(
    ("text", "span"),
    [
        ("plain", "`plain`"),
        ("", "`—`"),
        ("a|b", "`a|b`"),
        ("a\nb\tc", "`a b c`"),
        ("`x`", "`` `x` ``"),
        ("a``b", "``` a``b ```"),
    ],
)
def test_foreign_text_becomes_a_span_of_one_line(text: str, span: str) -> None:
    assert code(text) == span


def test_a_span_is_read_back_as_the_text_it_was() -> None:
    for text in ("a|b`c", "x` `y``", "<b>", "\\", "|", "``"):
        (span,) = [token for token in tokens(code(text)) if token.type == "code_inline"]
        (cell,) = [t for t in tokens(_table(["h"], [[code(text)]])) if t.type == "code_inline"]
        assert cell.content == span.content
        assert span.content == text


def test_what_is_longer_than_a_comment_is_cut_at_a_paragraph_and_says_so() -> None:
    stored = [A, *(runs.again(A, f"run-{n}") for n in range(20))]
    text = written(*stored)
    assert len(text) <= MAX_CHARACTERS + 200
    assert text.endswith("Cut here: the page holds the rest.\n")
    assert text.count("<details>") == text.count("</details>")


def test_three_runs_have_a_column_group_each() -> None:
    text = written(A, B, runs.all_slower(runs.again(A, "third"), 2.0))
    assert "| figure | A | B | B / A [95 %] | verdict | C | C / A [95 %] | verdict |" in text


def test_a_bar_has_a_backslash_in_tables_alone() -> None:
    bench, trials = A
    named = {**bench.scenario["workloads"][0], "name": "a|b"}
    loads = [named, *bench.scenario["workloads"][1:]]
    one = (
        replace(bench, scenario={**bench.scenario, "workloads": loads}),
        tuple(
            runs.with_run(
                trial,
                lambda r: replace(
                    r, trial=replace(r.trial, workload={**r.trial.workload, "name": "a|b"})
                ),
            )
            for trial in trials
        ),
    )
    text = written(one, runs.all_slower(runs.again(one), 2.0), rules=("tpot_s.p50>1%",))
    spoken = [line for line in text.splitlines() if "a|b" in line]
    assert spoken
    assert not any(line.startswith("|") for line in spoken)
    assert all(line.startswith("|") for line in text.splitlines() if "\\|" in line)
    assert any("a\\|b" in line for line in text.splitlines())


def test_a_reason_that_a_comment_has_no_room_for_is_cut_visibly() -> None:
    whole = "x" * _MAX_REASON
    assert _short(whole) == whole
    assert _short(whole + "y") == f"{whole}…"
