from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from harness.execute.other_benches import FOLDER, announced


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KVBENCH_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


HOLD = (
    "import sys, pathlib\n"
    "from harness.execute.other_benches import announced\n"
    "with announced(pathlib.Path(sys.argv[1])):\n"
    "    print('held', flush=True); sys.stdin.read()\n"
)


def another(run: Path) -> subprocess.Popen[str]:
    child = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(run)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "held\n"
    return child


def test_another_bench_is_named_once_and_gone_when_it_ends(cache: Path, tmp_path: Path) -> None:
    with announced(tmp_path / "demo" / "mine") as other_benches:
        assert other_benches.look() == ()
        with another(tmp_path / "other" / "run-1") as child:
            assert other_benches.look() == ("other/run-1",)
            assert other_benches.look() == ()
            child.communicate("")
    assert list((cache / FOLDER).iterdir()) == []


def test_a_killed_bench_is_nobody(cache: Path, tmp_path: Path) -> None:
    with another(tmp_path / "other" / "run-1") as child:
        child.kill()
    assert len(list((cache / FOLDER).iterdir())) == 1
    with announced(tmp_path / "demo" / "mine") as other_benches:
        assert other_benches.look() == ()
    assert list((cache / FOLDER).iterdir()) == []


def test_a_cache_that_can_not_be_made_keeps_nobody_from_measuring(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("KVBENCH_CACHE", str(tmp_path / "file"))
    with announced(tmp_path / "demo" / str(os.getpid())) as other_benches:
        assert other_benches.look() == ()


def test_a_cache_that_is_cleared_in_the_meantime_leaves_nobody_to_be_found(
    cache: Path, tmp_path: Path
) -> None:
    with announced(tmp_path / "demo" / "mine") as other_benches:
        shutil.rmtree(cache)
        assert other_benches.look() == ()


def test_a_name_that_is_no_text_is_still_somebody(cache: Path, tmp_path: Path) -> None:
    with (
        announced(tmp_path / "demo" / "mine") as other_benches,
        another(tmp_path / "other" / "run-1") as child,
    ):
        (file,) = (f for f in (cache / FOLDER).iterdir() if f.name.endswith("run-1"))
        file.write_bytes(b"\xff")
        assert other_benches.look() == ("\ufffd",)
        child.communicate("")


def test_whoever_looks_while_others_begin_takes_none_of_them_for_a_killed_one(
    cache: Path, tmp_path: Path
) -> None:
    # Without the lock before the name, the looks remove files that are opened and not yet locked.
    done = threading.Event()

    def look_without_end() -> None:
        with announced(tmp_path / "demo" / "mine") as other_benches:
            while not done.is_set():
                other_benches.look()

    looking = threading.Thread(target=look_without_end)
    looking.start()
    lost = []
    try:
        for number in range(300):
            with announced(tmp_path / "other" / f"run-{number}"):
                if not list((cache / FOLDER).glob(f"*-run-{number}")):
                    lost.append(number)
    finally:
        done.set()
        looking.join()
    assert lost == []
    assert list((cache / FOLDER).iterdir()) == []
