"""The client keeps off the engine's cores, and says where it can't."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

import pytest

from harness.execute.client_cores import client_cores
from harness.execute.progress import Silent


@dataclass
class Told(Silent):
    warnings: list[str] = field(default_factory=list)

    def warn(self, text: str) -> None:
        self.warnings.append(text)


def log(own: str, reserved: str = "") -> str:
    """As the CPU build writes it."""
    left = f"\n\treserved_cpus=[{reserved}]" if reserved else ""
    return f"\tlocal_rank=0, core ids=[{own}]{left}"


@pytest.fixture
def cores(monkeypatch: pytest.MonkeyPatch) -> list[set[int]]:
    """A process on four cores; the sets that it was put on since, the last one in force."""
    put = [{0, 1, 2, 3}]
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(put[-1]))
    monkeypatch.setattr(os, "sched_setaffinity", lambda _pid, wanted: put.append(set(wanted)))
    return put


@pytest.mark.parametrize(
    ("said", "on"),
    [
        (log("0"), {1, 2, 3}),
        (log("0, 1", "3"), {3}),
        # Of those that it left, the ones that this process may use at all.
        (log("0", "1, 2, 7"), {1, 2}),
    ],
)
def test_while_the_load_is_played_the_engines_cores_are_left_to_it(
    cores: list[set[int]], said: str, on: set[int]
) -> None:
    told = Told()
    with client_cores(said, told):
        assert cores[-1] == on
    assert cores[-1] == {0, 1, 2, 3}
    assert told.warnings == []


def test_a_log_that_names_no_cores_changes_nothing(cores: list[set[int]]) -> None:
    told = Told()
    with client_cores("Application startup complete.", told):
        pass
    assert (len(cores), told.warnings) == (1, [])


def test_where_the_engine_left_no_core_that_is_said(cores: list[set[int]]) -> None:
    told = Told()
    with client_cores(log("0, 1, 2, 3"), told):
        pass
    assert len(cores) == 1
    assert told.warnings == [
        "engine and client share their cores: latencies contain the client's work"
    ]


def test_a_load_that_fails_gives_the_cores_back(cores: list[set[int]]) -> None:
    with pytest.raises(KeyboardInterrupt), client_cores(log("0"), Told()):
        raise KeyboardInterrupt
    assert cores[-1] == {0, 1, 2, 3}


def test_the_systems_own_call_takes_what_is_asked_of_it() -> None:
    before = os.sched_getaffinity(0)
    # No core is called 99,999, so all of ours stay.
    with client_cores(log("99999"), Told()):
        assert os.sched_getaffinity(0) == before
