"""What README and docs tell a reader to type works as written: scenario, commands, make calls."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import typer.main
from typer.testing import CliRunner

from harness.analysis.quality_results import JudgeOutcome
from harness.cli.app import COMMANDS, build
from harness.engines import vllm
from harness.execute.judging import KEY_VARIABLES
from harness.report.claims import CLAIMS
from harness.scenario import PROFILES, load_scenario
from harness.scenario.load import TOP_KEYS
from harness.scenario.reference import ReferenceOptions
from harness.scenario.schema import (
    MATRIX_KEYS,
    VARIANT_KEYS,
    Judge,
    Kvpress,
    LengthMix,
    Needles,
    Quality,
    Scenario,
    Slo,
    Strict,
    Timeouts,
    Variant,
    Workload,
)
from tests.report.stored import unpacked

ROOT = Path(__file__).resolve().parents[1]
PAGES = (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(ROOT.glob("docs/**/*.md")))
APP = build([])
ALL_COMMANDS = typer.main.get_command(APP)
#: Pure arithmetic: these are run as written, the others only read by the command line.
RUN_AS_WRITTEN = ("plan", "calc", "advise")
#: What stands for a value of the reader's own.
STAND_INS = {
    "MODEL": "Qwen/Qwen3-8B",
    "SCENARIO": "smoke",
    "NAME": "smoke",
    "name": "smoke",
    "N": "3",
}


def example() -> str:
    blocks = re.findall(r"```yaml\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    return next(str(block) for block in blocks if block.startswith("schema: 1"))


def code_of(page: Path) -> Iterator[str]:
    """Lines of code blocks (continued ones joined) and code spans, which may cross a line end."""
    text = page.read_text()
    fenced = re.compile(r"```\w*\n(.*?)```", re.DOTALL)
    indented = re.compile(r"(?<=\n\n)((?: {4}\S.*\n)+)")
    for block in (*fenced.findall(text), *indented.findall(text)):
        yield from re.sub(r"\\\n\s*", "", block).splitlines()
    spans = re.findall(r"(?<!`)`([^`]+)`(?!`)", fenced.sub("", text))
    yield from (" ".join(span.split()) for span in spans)


def calls(program: str) -> list[str]:
    """What is typed after ``program`` in any page, with the comment and what follows `&&` cut."""
    found = re.compile(rf"^(?:\$ |.*\brun: |.*&& )?\s*(?:\.venv/bin/)?{program} (\S.*)$")
    hits = [m[1] for page in PAGES for code in code_of(page) if (m := found.match(code))]
    return sorted({re.split(r"\s+(?:#|&&|;)", hit)[0] for hit in hits})


def words_of(call: str) -> list[str]:
    """The words as a shell reads them, without the optional parts of a synopsis."""
    words = shlex.split(re.sub(r"\s\[[^\]]*\]|\s>.*", "", call))
    return [STAND_INS.get(word, word) for word in words]


def read_by_the_command_line(words: list[str]) -> str:
    """Parse without running: an unknown command, option, value or extra word raises."""
    group: Any = ALL_COMMANDS
    name, *rest = words
    while hasattr(group.commands.get(name), "commands"):
        group, (name, *rest) = group.commands[name], rest
    assert name in group.commands, f"there is no command {name!r}"
    command = group.commands[name]
    if words[1:]:
        try:
            command.make_context(name, list(rest))
        except Exception as error:
            # A fragment such as `kvbench bench --resume` leaves out what it is about.
            missing = getattr(error, "param", None)
            if getattr(missing, "param_type_name", None) != "argument" or rest[0][:1] != "-":
                raise
            command.make_context(name, ["smoke", *rest])
    return str(name)


@pytest.mark.parametrize("profile", PROFILES)
def test_the_scenario_in_the_readme_is_planned_in_every_profile(
    tmp_path: Path, profile: str
) -> None:
    path = tmp_path / "my.yaml"
    path.write_text(example())
    done = CliRunner().invoke(APP, ["plan", str(path), "--profile", profile])
    assert done.exit_code == 0, done.output
    # Two variants, three repeats.
    assert "in 6 server launches" in done.output
    assert all(w.total_tokens <= 9216 for w in load_scenario(path, profile).workloads)


def test_pages_hold_commands_to_try() -> None:
    assert len(calls("kvbench")) > 15
    assert len(calls("make")) > 10
    assert any("kv_budget" in call for call in calls_with_args())


@pytest.mark.parametrize("call", calls("kvbench"))
def test_a_command_of_the_pages_is_understood_as_written(call: str) -> None:
    words = words_of(call)
    name = read_by_the_command_line(words)
    if name in RUN_AS_WRITTEN and words[1:] and "my.yaml" not in words:
        done = CliRunner().invoke(APP, words)
        assert done.exit_code == 0, done.output


@pytest.mark.parametrize("call", calls("make"))
def test_a_make_call_of_the_pages_names_a_target_and_variables_that_exist(call: str) -> None:
    makefile = (ROOT / "Makefile").read_text()
    for word in shlex.split(re.sub(r"<[^>]*>", "value", call)):
        name, equals, value = word.partition("=")
        pattern = rf"\$\$?[({{]*{name}\b|^export .*\b{name}\b" if equals else rf"^{name}:"
        assert re.search(pattern, makefile, re.MULTILINE), word
        if name == "SCENARIO":
            assert value == "name" or (ROOT / f"scenarios/{value}.yaml").is_file()


def calls_with_args() -> list[str]:
    """Every ``ARGS='…'`` of the pages and the Makefile's help."""
    texts = [*(page.read_text() for page in PAGES), (ROOT / "Makefile").read_text()]
    quoted = re.compile(r"ARGS=(?:'([^']*)'|\"([^\"]*)\"|([^\s'\"`…\])]+))")
    found = {m[1] or m[2] or m[3] for text in texts for m in quoted.finditer(text)}
    return sorted(value for value in found if value.startswith("--"))


@pytest.mark.parametrize("value", calls_with_args())
def test_args_for_make_are_words_of_one_command_once_the_shell_has_split_them(value: str) -> None:
    """Make puts $(ARGS) into its shell line as it is: blanks split and braces expand there."""
    if value in ARGS_OF_OTHER_TARGETS:
        return
    words = shlex.split(value)
    if "--set" in words:
        done = CliRunner().invoke(APP, ["plan", "fp8_vs_fp16", "--profile", "cuda", *words])
        assert done.exit_code == 0, done.output
    read_by_the_command_line(["bench", "smoke", *words])


#: Of `make kvpress` and `make bench-client`; their own tests hold them.
ARGS_OF_OTHER_TARGETS = ("--setup-only", "--patience-s 600", "--json")


def test_the_example_is_rebuilt_from_a_stored_run_or_told_in_one_message_that_there_is_none(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "docs/example"
    folder.mkdir(parents=True)
    shutil.copy(ROOT / "docs/example/build.sh", folder)
    (folder / "report.html").write_text("the old page")

    def build_example() -> subprocess.CompletedProcess[str]:
        path = f"{tmp_path / 'bin'}:/usr/bin:/bin"
        words = ["sh", str(folder / "build.sh")]
        return subprocess.run(
            words, env={"PATH": path}, capture_output=True, text=True, check=False, timeout=60
        )

    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/chromium").write_text("#!/bin/sh\n")
    (tmp_path / "bin/chromium").chmod(0o755)
    bare = build_example()
    assert (bare.returncode, bare.stderr) == (1, "kvbench is not set up here; next: make setup\n")

    programs = tmp_path / ".venv/bin"
    programs.mkdir(parents=True)
    (programs / "python").symlink_to(sys.executable)
    script = f'#!/bin/sh\nPYTHONPATH="{ROOT}" exec "{sys.executable}" -m harness.cli.app "$@"\n'
    (programs / "kvbench").write_text(script)
    (programs / "kvbench").chmod(0o755)
    done = build_example()
    assert done.returncode == 2
    assert "there is no stored run 'fp8_vs_fp16'" in done.stderr
    assert "Traceback" not in done.stderr
    assert (folder / "report.html").read_text() == "the old page"


def test_pages_that_name_the_chapter_introduce_it_and_every_claim_can_be_looked_up() -> None:
    naming = [page for page in PAGES if "chapter" in page.read_text()]
    assert len(naming) > 3
    for page in naming:
        assert re.search(r"textbook chapter|chapter\.md", page.read_text()), page
    assert (ROOT / "README.md").read_text().index("textbook chapter") < 1500
    rows = (ROOT / "docs/chapter.md").read_text()
    for claim in CLAIMS.values():
        assert f"| {claim.number} | {claim.text} | {claim.erratum or '—'} |" in rows


def tables(page: str) -> list[list[list[str]]]:
    """Every table of a page as rows of cells, its head first and the line below it left out."""
    text = (ROOT / page).read_text()
    found = re.findall(r"(?:^\|.*\|\n)+", text, re.MULTILINE)
    split = [
        [
            [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
            for line in table.splitlines()
        ]
        for table in found
    ]
    return [[rows[0], *rows[2:]] for rows in split]


def key_tables() -> list[dict[str, str]]:
    """The tables of docs/scenarios.md that list keys: each key and its default, as written."""
    return [
        {row[0].strip("`"): row[2] for row in rows[1:]}
        for rows in tables("docs/scenarios.md")
        if rows[0][:3] == ["key", "value", "default"]
    ]


#: The models in the order of the page's tables; of a variant the flags are vLLM's.
DOCUMENTED: tuple[type[Strict], ...] = (
    *(Scenario, Variant, Kvpress, Workload, LengthMix, Slo, Timeouts),
    *(Quality, Needles, Judge),
)
#: Defaults that are mappings are told in a table of their own, or as their short form.
SHORT_FORMS = {
    "kv_budget": "`equal_bytes`",
    "timeouts": "see below",
    "slo": "none",
    "judge": "`self`",
    "depths": "`[0, 0.25, 0.5, 0.75, 1]`",
}


@pytest.mark.parametrize("at", range(len(DOCUMENTED)), ids=[m.__name__ for m in DOCUMENTED])
def test_every_key_of_a_scenario_is_documented_with_its_default(at: int) -> None:
    assert len(key_tables()) == len(DOCUMENTED)
    model, written = DOCUMENTED[at], key_tables()[at]
    fields = {name.rstrip("_"): field for name, field in model.model_fields.items()}
    if model is Scenario:
        # The profile is chosen, not written; `profiles` is read before the model.
        assert set(written) == set(TOP_KEYS)
        assert set(written) - {"profiles"} == set(fields) - {"profile"}
    else:
        assert set(written) == set(VARIANT_KEYS if model is Variant else fields)
    for name, told in written.items():
        if name not in fields or name in SHORT_FORMS:
            assert told == SHORT_FORMS.get(name, "none")
        elif fields[name].is_required() or name == "baseline":
            assert told == "required"
        else:
            default = fields[name].get_default(call_default_factory=True)
            assert told == ("none" if default in (None, "", (), {}) else f"`{default}`"), name


def test_the_reference_of_scenarios_names_what_may_be_a_list_and_the_other_engines_options() -> (
    None
):
    page = (ROOT / "docs/scenarios.md").read_text()
    (sentence,) = re.findall(
        r"One entry of `workloads`\.(.*?)\*\*may be lists\*\*", page, re.DOTALL
    )
    assert set(re.findall(r"`(\w+)`", sentence)) == set(MATRIX_KEYS)
    options = tables("docs/reference-engine.md")[0]
    assert {row[0].strip("`") for row in options[1:]} == set(ReferenceOptions.model_fields)


def test_profiles_merge_as_the_reference_of_scenarios_says(tmp_path: Path) -> None:
    page = (ROOT / "docs/scenarios.md").read_text()
    path = tmp_path / "merged.yaml"
    path.write_text(next(b for b in re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)))
    merged = load_scenario(path, "cpu", overrides=["workloads.0.concurrency=[4,8]", "repeats=5"])
    assert merged.server["enable_prefix_caching"] is False
    assert merged.server["max_model_len"] == 1024
    assert list(merged.variants) == ["fp16", "fp8", "e5m2"]
    assert [w.concurrency for w in merged.workloads] == [4, 8]
    assert {w.context_tokens for w in merged.workloads} == {512}
    assert merged.repeats == 5
    assert len(load_scenario(path, "cuda").workloads) == 2


def section(page: str, heading: str) -> str:
    """What stands below a heading, up to the next one of the same or a higher level."""
    text = (ROOT / page).read_text()
    start = text.index(f"\n{heading}\n") + len(heading) + 2
    level = heading.count("#")
    end = re.search(rf"^#{{2,{level}}} ", text[start:], re.MULTILINE)
    return text[start : start + end.start()] if end else text[start:]


def options_of(command: str) -> set[str]:
    group: Any = ALL_COMMANDS
    for name in command.split():
        group = group.commands[name]
    found = {opt for param in group.params for opt in (*param.opts, *param.secondary_opts)}
    return {option for option in found if option.startswith("--")}


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_of_a_command_is_documented_and_no_other(command: str) -> None:
    rows = re.findall(
        r"^\| (`--.*?) \|", section("docs/commands.md", f"## {command}"), re.MULTILINE
    )
    written = {name for row in rows for name in re.findall(r"`(--[\w-]+)`", row)}
    assert written == (set() if command == "model" else options_of(command))


def test_every_option_that_a_page_names_is_one_of_ours_or_the_engines() -> None:
    ours = {option for name in COMMANDS if name != "model" for option in options_of(name)}
    flags = json.loads((ROOT / "harness/data/vllm_flags.json").read_text())["flags"]
    engines = {f"--{flag.replace('_', '-')}" for flag in flags}
    # Of every command, and of `vllm bench serve`, which the exports are named after.
    known = ours | engines | {"--help", "--version", "--save-detailed"}
    named = [
        (page.name, re.split(r"[ =/]", code)[0])
        for page in PAGES
        for code in code_of(page)
        if code.startswith("--")
    ]
    assert len(named) > 100
    assert [each for each in named if each[1].replace("--no-", "--") not in known] == []


#: Mappings whose keys are names of the reader's own, or words that the text need not list.
NAMED_BY_DATA = ("concurrency_at_workload", "methods", "skipped", "tasks", "env", "workload")
#: What stands in code spans of the JSON's tables and is a value, a unit or an option.
VALUES = {
    *("sealed", "failed", "skipped", "started", "measured", "emulated", "modelled", "self"),
    *(
        "valid",
        "suspect",
        "invalid",
        "variant",
        "expected",
        "higher",
        "lower",
        "ok",
        "warn",
        "fail",
    ),
    *("full", "sliding", "chunked", "mla", "recurrent", "bench", "judge", "doctor", "compare"),
    *("at", "least", "most", "variants", "random", "weights"),
}


def keys_of(value: Any) -> set[str]:
    """Every key of a JSON value at any depth; below mappings of names none."""
    if isinstance(value, list):
        return {key for item in value for key in keys_of(item)}
    if not isinstance(value, dict):
        return set()
    below = (keys_of(item) for key, item in value.items() if key not in NAMED_BY_DATA)
    return set(value) | {key for keys in below for key in keys}


def spans_of(text: str) -> set[str]:
    """The words in code spans: of `rows[].cells` both."""
    spans = [span for span in re.findall(r"`([^`]+)`", text) if not span.startswith("--")]
    return {word for span in spans for word in re.findall(r"\b[a-z][a-z0-9_]*\b", span)}


def printed(*words: str) -> Any:
    done = CliRunner().invoke(APP, [*words, "--json"])
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def assert_told(text: str, answers: list[Any]) -> None:
    """Every key is documented, and nothing is documented that is no key."""
    keys = {key for answer in answers for key in keys_of(answer)}
    things = spans_of(section("docs/results-format.md", "## What `--json` prints").split("###")[0])
    assert keys - spans_of(text) - things == set()
    assert spans_of(text) - keys - things - VALUES == set()


def test_the_json_of_runs_and_scoreboards_is_documented_key_by_key(tmp_path: Path) -> None:
    pages = ("--reports", str(tmp_path / "reports"))
    runs = [str(unpacked(name, tmp_path / name)) for name in ("fp8_vs_fp16", "token_eviction")]
    answers = [
        printed("report", runs[0], *pages, "--export", str(tmp_path / "trials.csv")),
        *(printed("report", run, *pages) for run in runs[1:]),
    ]
    assert answers[0]["exports"] == [str(tmp_path / "trials.csv")]
    assert_told(section("docs/results-format.md", "### bench and report"), answers)
    board = printed("report", "--scoreboard", *runs[:1], *pages)
    assert_told(section("docs/results-format.md", "### report --scoreboard"), [board])
    # `judge` prints what stands in the report.
    (outcome,) = answers[0]["quality"]["judges"]
    assert set(outcome) == {field.name for field in fields(JudgeOutcome)}


def test_the_json_of_predictions_is_documented_key_by_key() -> None:
    model, case = "Qwen/Qwen3-8B", ("--context", "32k", "--gpu", "a100-80gb")
    calc = [
        printed("calc", model, *case, "--requests", "3"),
        printed("calc", model, "--compare", "mha,gqa"),
    ]
    assert_told(section("docs/results-format.md", "### calc"), calc)
    advice = printed("advise", model, *case, "--concurrency", "64", "--shared-prefix", "1000")
    assert_told(section("docs/results-format.md", "### advise"), [advice])
    plans = [printed("plan", name, "--profile", "cpu") for name in ("smoke", "token_eviction")]
    assert_told(section("docs/results-format.md", "### plan"), plans)


def test_the_json_of_doctor_is_documented_key_by_key() -> None:
    done = CliRunner().invoke(APP, ["doctor", "--json"])
    assert done.exit_code in (0, 1)
    told = section("docs/results-format.md", "### judge, doctor, compare").partition("`doctor`")[2]
    assert_told(told, [json.loads(done.stdout)])


def test_what_pages_say_of_the_scenarios_that_ship_is_so() -> None:
    shipped = {path.stem: path for path in sorted((ROOT / "scenarios").glob("*.yaml"))}
    resolved = {
        (name, profile): load_scenario(path, profile)
        for name, path in shipped.items()
        for profile in PROFILES
    }
    # README: no compiler is needed on a CPU, since no graph is compiled.
    for (name, profile), scenario in resolved.items():
        if profile == "cpu" and scenario.engine == "vllm":
            eager = [scenario.flags_of(one).get("enforce_eager") for one in scenario.served]
            assert set(eager) == {True}, name
    # README and docs/strategies.md list them all, docs/quality.md those that ask.
    listed = {row[0] for rows in tables("README.md") for row in rows if rows[0][0] == "scenario"}
    assert {name for cell in listed for name in re.findall(r"`(\w+)`", cell)} == set(shipped)
    strategies = {row[0].strip("`") for row in tables("docs/strategies.md")[0][1:]}
    assert strategies == set(shipped) - {"smoke"}
    (asking, silent) = re.findall(
        r"Five of the scenarios that ship ask, in both profiles: (.*?)\. The others (.*)\n",
        (ROOT / "docs/quality.md").read_text(),
    )[0]
    for name in shipped:
        asks = {resolved[name, profile].quality is not None for profile in PROFILES}
        assert asks == {f"`{name}`" in asking}, name
        assert (f"`{name}`" in silent) is not (f"`{name}`" in asking), name
    assert resolved["strategies", "cpu"].variants.keys() >= {"paged"}
    for profile in PROFILES:
        assert len(resolved["strategies", profile].variants) == 8


def test_the_page_on_the_environment_names_every_variable_that_is_read() -> None:
    page = (ROOT / "docs/environment.md").read_text()
    rows = {row[0].strip("`") for row in tables("docs/environment.md")[0][1:]}
    sources = [path.read_text() for path in (ROOT / "harness").rglob("*.py")]
    ours = {name for text in sources for name in re.findall(r"\bKVBENCH_[A-Z_]+\b", text)}
    assert {name for name in rows if name.startswith("KVBENCH_")} == ours
    looked_up = {
        name for text in sources for name in re.findall(r"environ(?:\.get\(|\[)\"(\w+)\"", text)
    }
    for name in looked_up | set(vllm.DROPPED_ENV) | set(KEY_VARIABLES):
        assert name in rows or f"`{name}`" in page or f"${name}/" in page, name


def anchors_of(page: Path) -> set[str]:
    """The anchors that GitHub gives the headings of a page."""
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CHANGELOG.md"], ids=lambda page: page.name)
def test_every_link_between_pages_leads_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        path, _, anchor = target.partition("#")
        if "://" in target:
            continue
        found = (page.parent / path) if path else page
        assert found.exists(), target
        if anchor:
            assert anchor in anchors_of(found), target
