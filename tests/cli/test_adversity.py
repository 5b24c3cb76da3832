"""Benches under hard conditions: interrupts, kills, a full disk, no permission, company.

Every bench here is a process of its own with the stand-in for an engine.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil
import pytest

from harness import store
from tests.cli.test_commands import ROOT, scenario
from tests.execute.test_local import CONFIG, await_requests

__all__ = ["scenario"]

STARTED: list[subprocess.Popen[str]] = []


@pytest.fixture(autouse=True)
def none_left() -> Iterator[None]:
    """A test that fails half-way leaves no process behind."""
    yield
    while STARTED:
        with STARTED.pop() as child:
            child.kill()


KVBENCH = ("-m", "harness.cli.app")


def start(
    cwd: Path,
    *words: str,
    env: dict[str, str] | None = None,
    program: tuple[str, ...] = KVBENCH,
    **more: object,
) -> subprocess.Popen[str]:
    own = {"PYTHONPATH": str(ROOT), "KVBENCH_CACHE": str(cwd / "cache"), "COLUMNS": "200"}
    child = subprocess.Popen(
        [sys.executable, *program, *words],
        cwd=cwd,
        env={**os.environ, **own, **(env or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **more,  # type: ignore[call-overload]
    )
    STARTED.append(child)
    return child


def ended(child: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = child.communicate(timeout=300)
    assert "Traceback" not in err
    return child.returncode, out, err


def await_line(child: subprocess.Popen[str], text: str) -> None:
    assert child.stderr is not None
    for line in child.stderr:
        if text in line:
            return
    raise AssertionError(f"{text!r} was never said")


def only_run(root: Path) -> Path:
    (folder,) = root.glob("*/*")
    return folder


def bench(path: Path | str, *words: str) -> tuple[str, ...]:
    return ("bench", str(path), "--profile", "cpu", *words)


# ── interrupts ──────────────────────────────────────────────────────────────────────────────


@pytest.mark.usefixtures("fake_engine")
def test_an_interrupt_while_a_server_is_stopped_keeps_the_trial_and_can_be_resumed(
    scenario: Path, tmp_path: Path
) -> None:
    # The engine leaves a process behind that ignores SIGTERM, so stopping it takes long.
    child = start(tmp_path, *bench(scenario), env={"FAKE_ENGINE": "stubborn"})
    await_line(child, "stopping the server")
    time.sleep(0.3)
    guards = psutil.Process(child.pid).children()
    child.send_signal(signal.SIGINT)
    code, _, err = ended(child)
    assert code == 130
    assert "what was measured is kept" in err
    for guard in guards:
        # Told to end all by the end of its input; it is on its own now, if it is not done yet.
        with contextlib.suppress(psutil.NoSuchProcess):
            guard.kill()
    record, trials = store.read_bench(only_run(tmp_path / "results"))
    assert record.status == "interrupted"
    assert [trial.run.status for trial in trials] == ["sealed"]
    code, _, err = ended(start(tmp_path, *bench(scenario, "--resume")))
    assert code == 0, err
    record, again = store.read_bench(only_run(tmp_path / "results"))
    assert [trial.run.status for trial in again] == ["sealed", "sealed"]
    assert again[0].run.zero_unix_s == trials[0].run.zero_unix_s


#: kvbench whose report waits with its pictures drawn and its page not yet written.
HELD_REPORT = """
import sys, time
from harness.cli.app import main
from harness.report import html
def held(*_given, **_named):
    print("the report is written", file=sys.stderr, flush=True)
    time.sleep(120)
html.page = held
main()
"""


@pytest.mark.usefixtures("fake_engine")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_while_the_report_is_written_says_how_to_get_it(
    scenario: Path, tmp_path: Path, number: signal.Signals
) -> None:
    child = start(tmp_path, *bench(scenario), program=("-c", HELD_REPORT))
    await_line(child, "the report is written")
    child.send_signal(number)
    code, _, err = ended(child)
    assert code == 130
    run = only_run(tmp_path / "results")
    assert store.read_manifest(run).status == "finished"
    assert list((tmp_path / "reports").glob("**/*.png"))
    assert f"everything was measured; `kvbench report results/demo/{run.name}` tells it" in err
    assert not list((tmp_path / "reports").glob("**/report.html"))
    code, _, err = ended(start(tmp_path, "report", str(run)))
    assert code == 0, err
    assert len(list((tmp_path / "reports").glob("**/report.html"))) == 1


# ── kills ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.usefixtures("fake_engine")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_the_strategies_resume_half_way_and_end_with_every_trial_once(
    tmp_path: Path, number: signal.Signals
) -> None:
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text(CONFIG)
    less = ("--set", f"model={model}", "--set", "repeats=1", "--set", "quality=null", "--json")
    child = start(tmp_path, *bench("strategies", *less))
    await_line(child, "launch 4/")
    # In the middle of the fourth of eight launches.
    await_line(child, "trial ")
    child.send_signal(number)
    assert ended(child)[0] == (130 if number == signal.SIGINT else -number)
    run = only_run(tmp_path / "results")
    before, trials = store.read_bench(run)
    kept = {t.run.trial.trial_id: t.run.zero_unix_s for t in trials if t.run.status == "sealed"}
    assert 6 <= len(kept) < len(before.trial_ids) == 16
    code, out, err = ended(start(tmp_path, *bench("strategies", *less, "--resume")))
    assert code == 0, err
    assert only_run(tmp_path / "results") == run
    record, trials = store.read_bench(run)
    assert record.status == "finished"
    counted = Counter(trial.run.trial.trial_id for trial in trials)
    assert counted == dict.fromkeys(record.trial_ids, 1)
    statuses = Counter(trial.run.status for trial in trials)
    # Offloading takes no CPU; its two workloads are skipped with the engine's reason.
    assert statuses == {"sealed": 14, "skipped": 2}
    assert "offload" in record.skipped
    again = {trial.run.trial.trial_id: trial.run.zero_unix_s for trial in trials}
    assert {name: again[name] for name in kept} == kept
    rows = json.loads(out)["rows"]
    assert len({row["trial"] for row in rows}) == len(rows) == 16


# ── the machine says no ─────────────────────────────────────────────────────────────────────


def _little_room() -> None:
    """No file may grow beyond 40,000 bytes: what a full disk looks like to a writer."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, 40_000))


@pytest.mark.usefixtures("fake_engine")
def test_a_disk_that_fills_up_half_way_loses_nothing_that_was_measured(
    scenario: Path, tmp_path: Path
) -> None:
    # A record of a request takes some 450 bytes: about 85 of 400 find room.
    words = bench(scenario, "--set", "workloads.0.num_prompts=400")
    child = start(tmp_path, *words, preexec_fn=_little_room)
    code, _, err = ended(child)
    assert code == 1
    assert "can't write: No space left on device" in err
    assert "what is already measured is kept, and `--resume` goes on from there" in err
    run = only_run(tmp_path / "results")
    _, (trial,) = store.read_bench(run)
    assert trial.run.status in ("started", "failed")
    measured = [r for r in trial.requests if r.phase == "measured" and r.error is None]
    assert len(measured) > 50
    # The one line that did not fit is the only damage.
    assert trial.damaged_lines <= 1
    code, _, err = ended(start(tmp_path, *words, "--resume"))
    assert code == 0, err
    _, trials = store.read_bench(run)
    assert [t.run.status for t in trials] == ["sealed", "sealed"]
    assert len(list(run.glob("*.attempt-1/requests.jsonl"))) == 1


def _no_privileges() -> None:
    """Root passes by the permissions of files; without these two capabilities it does not.

    Dropped from the bounding set (PR_CAPBSET_DROP, 24) they are gone after the exec. Anybody but
    root has none to drop.
    """
    for capability in (1, 2):  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
        ctypes.CDLL(None).prctl(24, capability, 0, 0, 0)


@pytest.mark.usefixtures("fake_engine")
@pytest.mark.parametrize(
    ("closed", "message"), [("results", "can't write"), ("reports", "can't write the report")]
)
def test_a_folder_that_may_not_be_written_is_told_before_anything_is_started(
    scenario: Path, tmp_path: Path, closed: str, message: str
) -> None:
    (tmp_path / closed).mkdir()
    (tmp_path / closed).chmod(0o555)
    child = start(tmp_path, *bench(scenario, "--json"), preexec_fn=_no_privileges)
    code, out, err = ended(child)
    assert code == 1
    assert f"{message}: Permission denied" in err
    assert closed in err
    assert "next:" in err
    assert out == ""
    assert "launch 1" not in err
    # Let whoever cleans up in.
    (tmp_path / closed).chmod(0o755)


# ── company ─────────────────────────────────────────────────────────────────────────────────


def cautions(out: str) -> Sequence[str]:
    return [caution["code"] for caution in json.loads(out)["cautions"]]


#: For benches that are stopped with a request on its way, and let go on later.
PATIENT = ("--set", "timeouts.request_s=120")


@pytest.mark.usefixtures("fake_engine")
def test_two_benches_at_once_run_apart_and_both_say_that_they_were_not_alone(
    scenario: Path, tmp_path: Path
) -> None:
    slow = {"FAKE_ENGINE": "options:ttft_s=0.5"}
    first = start(tmp_path, *bench(scenario, "--json", *PATIENT), env=slow)
    requests = await_requests(tmp_path / "results", 1)
    mine = f"demo/{requests.parents[1].name}"
    # Each waits for the other to have seen it, however slow the machine is. A stopped process
    # keeps its lock.
    first.send_signal(signal.SIGSTOP)
    second = start(tmp_path, *bench(scenario, "--json", *PATIENT), env=slow)
    await_line(second, f"another bench is measuring on this machine ({mine})")
    second.send_signal(signal.SIGSTOP)
    first.send_signal(signal.SIGCONT)
    # The first learns of it at its own next launch.
    await_line(first, "another bench is measuring on this machine")
    second.send_signal(signal.SIGCONT)
    (code, out, err), (other_code, other_out, other_err) = ended(first), ended(second)
    assert (code, other_code) == (0, 0), err + other_err
    assert "not_alone" in cautions(other_out)
    assert "not_alone" in cautions(out)
    runs = {json.loads(text)["run"] for text in (out, other_out)}
    assert len(runs) == 2


@pytest.mark.usefixtures("fake_engine")
def test_a_second_bench_that_would_resume_a_run_in_progress_is_refused(
    scenario: Path, tmp_path: Path
) -> None:
    words = bench(scenario, *PATIENT)
    first = start(tmp_path, *words, env={"FAKE_ENGINE": "options:ttft_s=0.5"})
    await_requests(tmp_path / "results", 1)
    first.send_signal(signal.SIGSTOP)
    code, _, err = ended(start(tmp_path, *words, "--resume"))
    first.send_signal(signal.SIGCONT)
    assert code == 1
    assert "another kvbench is measuring into this run" in err
    assert ended(first)[0] == 0
