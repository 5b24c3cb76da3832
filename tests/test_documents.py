"""What README and docs tell a reader to type works as written: scenario, commands, make calls."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main
from typer.testing import CliRunner

from harness.cli.app import build
from harness.report.claims import CLAIMS
from harness.scenario import PROFILES, load_scenario

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
