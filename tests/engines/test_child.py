"""The child's protocol, with scripts of a few lines in the place of an engine."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from harness.engines.child import JsonChild
from harness.errors import EngineMissing, ServerDied, ServerStartError

READY = "print('{\"ready\": 1}', flush=True)\n"
#: Far longer than a test may take: whoever hits it has hung.
LONG_S = 120.0


class Script(JsonChild):
    TITLE = "the script"
    NO_MODULE = "install what it lacks"

    def ready(self, timeout_s: float = LONG_S) -> object:
        return self._await_ready(timeout_s, lambda _stage, _elapsed_s: None)

    def ask(self, timeout_s: float = LONG_S) -> object:
        self._send({"ask": 1})
        return next(self._events_until(time.monotonic() + timeout_s))


@pytest.fixture
def script(tmp_path: Path) -> Iterator[Callable[[str], Script]]:
    made: list[Script] = []

    def start(code: str) -> Script:
        made.append(Script((sys.executable, "-c", code), {}, tmp_path / "child.log"))
        return made[-1]

    yield start
    for one in made:
        one.stop()


def test_a_line_in_is_answered_by_a_line_out(script: Callable[[str], Script]) -> None:
    child = script(READY + "import sys\nfor line in sys.stdin: print(line, flush=True, end='')")
    assert child.ready() == {"ready": 1}
    assert child.ask() == {"ask": 1}
    assert child.death() is None


@pytest.mark.parametrize("stray", ["Downloading: 10%", "3", "\\xff"])
def test_a_line_that_is_no_answer_ends_the_wait_at_once_and_is_quoted(
    script: Callable[[str], Script], stray: str
) -> None:
    child = script(
        READY + "import sys; sys.stdin.readline(); sys.stderr.write('so far\\n')\n"
        f"sys.stdout.buffer.write(b'{stray}\\n'); sys.stdout.flush(); sys.stdin.read()"
    )
    child.ready()
    began = time.monotonic()
    with pytest.raises(ServerDied, match="wrote a line that is no answer") as caught:
        child.ask()
    assert time.monotonic() - began < LONG_S / 4
    assert stray.replace("\\xff", "\ufffd") in caught.value.what
    assert caught.value.where is not None
    assert caught.value.where.endswith("child.log")
    assert caught.value.evidence == "so far"
    # Whoever asks next hears of it again.
    assert child.death() == caught.value.what


def test_a_stray_line_before_it_is_ready_is_why_it_did_not_start(
    script: Callable[[str], Script],
) -> None:
    child = script("import sys; print('hello', flush=True); sys.stdin.read()")
    with pytest.raises(ServerStartError, match="no answer and was ended: 'hello'"):
        child.ready()


def test_a_child_that_closes_its_output_and_lives_on_is_ended(
    script: Callable[[str], Script],
) -> None:
    child = script(READY + "import os, sys; sys.stdin.readline(); os.close(1); sys.stdin.read()")
    child.ready()
    with pytest.raises(ServerDied, match="the script ended with exit code"):
        child.ask()


def test_one_that_takes_too_long_is_told_with_its_log_and_what_to_do(
    script: Callable[[str], Script],
) -> None:
    # Said before it is ready, so that it is in the log whenever the time is up.
    child = script(
        "import sys; sys.stderr.write('thinking\\n'); sys.stderr.flush()\n"
        + READY
        + "sys.stdin.read()"
    )
    child.ready()
    with pytest.raises(ServerDied, match="did not answer in time") as caught:
        child.ask(timeout_s=0.2)
    told = caught.value
    assert told.where is not None
    assert told.where.endswith("child.log")
    assert told.evidence == "thinking"
    assert told.next_move == "raise timeouts.request_s or shorten the workload"


def test_a_program_that_is_not_there_is_named_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(EngineMissing, match="can't start the script: No such file") as caught:
        Script((str(tmp_path / "python"),), {}, tmp_path / "child.log")
    told = caught.value
    assert (told.where, told.next_move) == (str(tmp_path / "python"), "install what it lacks")
    assert told.kind == "engine"
