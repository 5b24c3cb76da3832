"""Command lines are shown so that a shell reads them back, without anybody's home in them."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from harness.shell import own_program, relative_to_here, shell_line, with_tilde


def test_a_line_reads_back_word_for_word() -> None:
    words = ["python", "--hf-overrides", '{"a": 1}', "it's", "", "--flag=x"]
    assert shlex.split(shell_line(words)) == words


def test_a_leading_tilde_is_left_for_the_shell_to_expand() -> None:
    assert shell_line(["~/models/x", "~user", "~/my models"]) == "~/models/x '~user' '~/my models'"


def test_the_home_folder_is_written_as_a_tilde(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "home", lambda: Path("/home/someone"))
    assert with_tilde("/home/someone/.cache/m") == "~/.cache/m"
    assert with_tilde("/home/someone-else/m") == "/home/someone-else/m"
    monkeypatch.setattr(Path, "home", lambda: Path("/"))
    assert with_tilde("/etc/x") == "/etc/x"


def test_a_path_below_the_working_folder_is_relative(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert relative_to_here(str(tmp_path / ".venv/bin/python")) == ".venv/bin/python"
    assert relative_to_here("/usr/bin/python") == "/usr/bin/python"


def test_kvbench_is_named_by_the_path_it_was_started_with_unless_the_shell_finds_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / ".venv/bin/kvbench"
    program.parent.mkdir(parents=True)
    program.touch(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "/bin")
    for started in (".venv/bin/kvbench", str(program)):
        monkeypatch.setattr("sys.argv", [started, "bench", "smoke"])
        assert own_program() == ".venv/bin/kvbench"
    monkeypatch.setenv("PATH", str(program.parent))
    assert own_program() == "kvbench"
    monkeypatch.setattr("sys.argv", ["/site-packages/harness/cli/app.py"])
    assert own_program() == "kvbench"
