"""Resident memory of real process trees."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import psutil
import pytest

from harness.telemetry.process import (
    TREE_REFRESH_S,
    ProcessSource,
    tree_pids,
    tree_rss_bytes,
    worker_bytes,
)

MIB = 2**20

# A process that touches 64 MiB (every byte written), and a parent that does nothing but hold it.
CHILD = f"held = b'x' * {64 * MIB}; print('ready', flush=True); import sys; sys.stdin.read()"
PARENT = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {CHILD!r}])"
# One that begins such a child when it is told to.
TOLD = f"print('ready', flush=True); import sys; sys.stdin.readline(); {PARENT}"


@contextmanager
def _running(code: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process
        assert process.stdin is not None
        process.stdin.close()


@pytest.fixture
def family() -> Iterator[subprocess.Popen[str]]:
    with _running(PARENT) as parent:
        yield parent


@pytest.fixture
def gone() -> int:
    with _running("print('ready', flush=True)") as process:
        pass
    return process.pid


def test_the_tree_is_the_root_and_its_descendants(family: subprocess.Popen[str]) -> None:
    pids = tree_pids(family.pid)
    assert family.pid in pids
    assert len(pids) == 2
    assert os.getpid() not in pids
    assert pids < tree_pids(os.getpid())


def test_the_memory_of_a_child_is_in_the_sum(family: subprocess.Popen[str]) -> None:
    rss_bytes = tree_rss_bytes(family.pid)
    parts = [psutil.Process(pid).memory_info().rss for pid in tree_pids(family.pid)]
    assert rss_bytes == pytest.approx(sum(parts), abs=MIB)
    assert rss_bytes is not None
    assert rss_bytes > 64 * MIB + min(parts)


def test_the_source_counts_the_processes_in_its_sum(family: subprocess.Popen[str]) -> None:
    (sample,) = ProcessSource(family.pid).read(2.5)
    assert (sample.t_s, sample.processes) == (2.5, 2)
    assert sample.rss_bytes == pytest.approx(tree_rss_bytes(family.pid), abs=MIB)


def test_a_process_that_is_gone_is_unknown_and_not_zero(gone: int) -> None:
    assert tree_pids(gone) == frozenset()
    assert tree_rss_bytes(gone) is None
    source = ProcessSource(gone)
    (sample,) = source.read(0.0)
    assert (sample.rss_bytes, sample.processes) == (None, 0)
    assert source.problems.count == 1
    assert str(gone) in (source.problems.first_message or "")


def test_a_tree_that_dies_between_two_walks_turns_unknown() -> None:
    with _running(CHILD) as process:
        source = ProcessSource(process.pid)
        assert source.read(0.0)[0].rss_bytes is not None
    (after,) = source.read(TREE_REFRESH_S / 2)  # no new walk is due yet
    assert (after.rss_bytes, after.processes) == (None, 0)


def test_a_zombie_holds_nothing() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    zombie = psutil.Process(process.pid)
    while zombie.status() != psutil.STATUS_ZOMBIE:
        os.sched_yield()
    assert tree_pids(process.pid) == frozenset()
    assert tree_rss_bytes(process.pid) is None
    process.wait()


def test_a_new_child_is_seen_at_the_next_walk() -> None:
    with _running(TOLD) as parent:
        source = ProcessSource(parent.pid)
        assert source.read(0.0)[0].processes == 1
        assert parent.stdin is not None
        assert parent.stdout is not None
        parent.stdin.write("begin\n")
        parent.stdin.flush()
        assert parent.stdout.readline() == "ready\n"
        assert source.read(TREE_REFRESH_S - 0.1)[0].processes == 1
        assert source.read(TREE_REFRESH_S)[0].processes == 2


WORKER = "import sys, time; held = bytearray(64 << 20); print('ready', flush=True); time.sleep(60)"


def test_a_worker_is_found_by_its_title_and_its_tensors_are_counted() -> None:
    child = subprocess.Popen(
        ["VLLM::Worker_TP0", "-c", WORKER],  # noqa: S607 - the title is what is tested
        executable=sys.executable,
        stdout=subprocess.PIPE,
    )
    with child:
        assert child.stdout is not None
        child.stdout.readline()
        held = worker_bytes(os.getpid())
        child.kill()
    assert held is not None
    # 64 MiB of its own, and a bare interpreter's few.
    assert 64 << 20 < held < 96 << 20


def test_without_a_worker_its_memory_is_unknown() -> None:
    assert worker_bytes(os.getpid()) is None
