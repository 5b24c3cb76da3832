"""What is said of the code that a run was taken with."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from harness.machine import git_state


def git(folder: Path, *words: str) -> None:
    identity = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    git_words = ["git", *identity, *words]
    subprocess.run(git_words, cwd=folder, check=True, capture_output=True)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    (tmp_path / "harness").mkdir()
    (tmp_path / "harness" / "code.py").write_text("one = 1\n")
    (tmp_path / "README.md").write_text("read me\n")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", "first")
    return tmp_path


def test_a_checkout_as_committed_is_clean_and_a_changed_file_makes_it_dirty(checkout: Path) -> None:
    revision, dirty = git_state(checkout / "harness")
    assert revision is not None
    assert len(revision) == 40
    assert dirty is False
    (checkout / "README.md").write_text("changed\n")
    assert git_state(checkout / "harness") == (revision, True)


@pytest.mark.parametrize(
    ("path", "dirty"),
    [
        ("my/own.yaml", False),
        ("notes.txt", False),
        ("harness/new.py", True),
        ("scenarios/new.yaml", True),
        ("requirements/new.txt", True),
    ],
)
def test_new_files_count_only_where_they_could_take_part_in_a_run(
    checkout: Path, path: str, dirty: bool
) -> None:
    (checkout / path).parent.mkdir(exist_ok=True)
    (checkout / path).write_text("new\n")
    assert git_state(checkout / "harness")[1] is dirty


def test_asking_rewrites_nothing_of_the_checkout(checkout: Path) -> None:
    # A file with another time and the same text: git would note that in its index, under a lock.
    os.utime(checkout / "README.md", (1_000_000, 1_000_000))
    before = (checkout / ".git" / "index").read_bytes()
    assert git_state(checkout / "harness")[1] is False
    assert (checkout / ".git" / "index").read_bytes() == before


def test_outside_a_checkout_nothing_is_known(tmp_path: Path) -> None:
    assert git_state(tmp_path) == (None, None)
