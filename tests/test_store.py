"""What is stored can be read back, also after a kill; nothing finished is ever overwritten."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import textwrap
from dataclasses import replace
from pathlib import Path

import pytest

from harness import store
from harness.errors import NotFound, StoreError
from harness.record import EngineSample, ProcessSample, QualityAnswer, RequestRecord, Run
from tests import records

BENCH, TRIALS = records.bench()


def started() -> Run:
    return replace(TRIALS[0].run, status="started", load_end_s=None)


def request(index: int) -> RequestRecord:
    return RequestRecord(
        index=index,
        phase="measured",
        prompt_tokens_planned=4,
        output_tokens_planned=2,
        planned_send_s=0.0,
        sent_s=0.001,
        chunk_times_s=(0.1, 0.2),
        text="é <b>",
    )


def test_a_sealed_trial_reads_back_as_it_was_written(tmp_path: Path) -> None:
    with store.TrialFolder(tmp_path, started()) as folder:
        folder.append_request(request(0))
        folder.append_sample(EngineSample(t_s=0.1, kv_cache_usage=0.5))
        folder.append_sample(ProcessSample(t_s=0.2, rss_bytes=None, processes=3))
        written = folder.seal_with(status="sealed", load_end_s=9.5)
    trial = store.read_trial(folder.path)
    assert trial.run == written
    assert trial.requests == (request(0),)
    assert trial.engine_samples == (EngineSample(t_s=0.1, kv_cache_usage=0.5),)
    assert trial.process_samples[0].rss_bytes is None
    assert trial.damaged_lines == 0


def test_a_second_attempt_sets_the_first_aside(tmp_path: Path) -> None:
    for _ in range(3):
        with store.TrialFolder(tmp_path, started()) as folder:
            folder.append_request(request(0))
    names = sorted(path.name for path in tmp_path.iterdir())
    trial_id = started().trial.trial_id
    assert names == [trial_id, f"{trial_id}.attempt-1", f"{trial_id}.attempt-2"]


def test_a_cut_off_line_is_counted_and_left_out(tmp_path: Path) -> None:
    with store.TrialFolder(tmp_path, started()) as folder:
        folder.append_request(request(0))
    with (folder.path / store.REQUESTS_FILE).open("ab") as stream:
        stream.write(b'{"index": 1, "phase": "mea')
    trial = store.read_trial(folder.path)
    assert (len(trial.requests), trial.damaged_lines) == (1, 1)
    assert trial.run.status == "started"


def test_a_killed_writer_keeps_every_finished_request(tmp_path: Path) -> None:
    code = textwrap.dedent("""
        import sys
        from pathlib import Path
        from harness import store
        from tests.test_store import request, started
        with store.TrialFolder(Path(sys.argv[1]), started()) as folder:
            for index in range(3):
                folder.append_request(request(index))
            print("ready", flush=True)
            sys.stdin.read()
    """)
    child = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=Path(__file__).resolve().parents[1],
    )
    with child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        os.kill(child.pid, signal.SIGKILL)
    trial = store.read_trial(tmp_path / started().trial.trial_id)
    assert [record.index for record in trial.requests] == [0, 1, 2]


def test_a_full_disk_is_told_with_the_next_move(tmp_path: Path) -> None:
    with store.TrialFolder(tmp_path, started()) as folder:
        assert folder._requests is not None
        full = os.open("/dev/full", os.O_WRONLY)
        os.dup2(full, folder._requests.fileno())
        os.close(full)
        with pytest.raises(StoreError, match="No space left") as caught:
            folder.append_request(request(0))
    assert "--resume" in (caught.value.next_move or "")


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "results").write_text("a file stands here")
    with pytest.raises(StoreError, match="can't write"):
        store.new_run_folder(tmp_path / "results", "demo")


def test_runs_of_one_second_are_listed_in_the_order_in_which_they_began(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Every millisecond of a second's first tenth; the machine's own clock may be set back.
    moments = itertools.count(1_700_000_000_000_000_000, 1_000_000)
    monkeypatch.setattr("time.time_ns", lambda: next(moments))
    made = [store.new_run_folder(tmp_path, "demo").name for _ in range(100)]
    assert made == sorted(set(made))


def test_two_runs_of_the_same_moment_get_a_folder_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Half a second is 0x8000 of 65,536 parts; the third reading is one part (15,259 ns) later.
    moments = iter([500_000_000, 500_000_000, 500_015_259])
    monkeypatch.setattr("time.time_ns", lambda: next(moments))
    made = [store.new_run_folder(tmp_path, "demo").name for _ in range(2)]
    assert made == ["19700101-000000-8000", "19700101-000000-8001"]


def test_a_newer_schema_is_refused(tmp_path: Path) -> None:
    store.write_bench(tmp_path, replace(BENCH, schema_version=99))
    with pytest.raises(StoreError, match="newer kvbench"):
        store.read_bench(tmp_path)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"schema_version": 1}', b"\xff\xfe"])
def test_a_damaged_manifest_is_an_error_with_its_place(tmp_path: Path, content: bytes) -> None:
    (tmp_path / store.BENCH_FILE).write_bytes(content)
    with pytest.raises(StoreError, match="damaged") as caught:
        store.read_bench(tmp_path)
    assert str(tmp_path) in (caught.value.where or "")


def test_a_manifest_cannot_point_outside_its_folder(tmp_path: Path) -> None:
    store.write_bench(tmp_path, replace(BENCH, trial_ids=("../../etc",)))
    with pytest.raises(StoreError, match="no name of a trial folder"):
        store.read_bench(tmp_path)


def written_run(root: Path, run_id: str, sealed: bool) -> Path:
    folder = root / "demo" / run_id
    folder.mkdir(parents=True)
    run = started()
    store.write_bench(folder, replace(BENCH, run_id=run_id, trial_ids=(run.trial.trial_id,)))
    with store.TrialFolder(folder, run) as trial:
        if sealed:
            trial.seal_with(status="sealed")
    return folder


def test_runs_are_found_by_folder_id_and_scenario(tmp_path: Path) -> None:
    old = written_run(tmp_path, "20260101-000000-aaaa", sealed=True)
    new = written_run(tmp_path, "20260102-000000-bbbb", sealed=True)
    assert store.find_run(str(old), tmp_path) == old
    assert store.find_run("20260101-000000-aaaa", tmp_path) == old
    assert store.find_run("demo", tmp_path) == new
    # The folder of a scenario stands for its latest run, as its name does.
    assert store.find_run(str(tmp_path / "demo"), tmp_path / "elsewhere") == new
    with pytest.raises(NotFound, match="no stored run 'nope'"):
        store.find_run("nope", tmp_path)


def test_where_nothing_is_stored_the_next_move_is_a_run(tmp_path: Path) -> None:
    for given in ("nope", "", str(tmp_path)):
        with pytest.raises(NotFound, match="no stored run") as caught:
            store.find_run(given, tmp_path / "results")
        assert "`kvbench bench smoke` makes one" in (caught.value.next_move or "")
        assert caught.value.legal is None


def test_the_latest_run_with_something_left_is_resumed(tmp_path: Path) -> None:
    ids = (started().trial.trial_id,)
    written_run(tmp_path, "20260101-000000-aaaa", sealed=True)
    assert store.find_unfinished(tmp_path, "demo", ids) is None
    assert store.find_complete(tmp_path, "demo", ids) == tmp_path / "demo" / "20260101-000000-aaaa"
    new = written_run(tmp_path, "20260102-000000-bbbb", sealed=False)
    assert store.find_unfinished(tmp_path, "demo", ids) == new
    assert store.find_complete(tmp_path, "demo", ids) is None
    assert store.find_unfinished(tmp_path, "demo", ("other",)) is None


def test_the_tail_of_a_log_is_decoded_leniently(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_bytes(b"x" * 100 + b"\xffend")
    assert store.read_text_tail(log, 4) == "�end"
    assert store.read_text_tail(tmp_path / "none") == ""


def test_a_run_is_measured_by_one_process_at_a_time(tmp_path: Path) -> None:
    held = store.hold_run(tmp_path)
    held.__enter__()
    with pytest.raises(StoreError, match="another kvbench"):
        store.hold_run(tmp_path).__enter__()
    held.__exit__(None, None, None)
    with store.hold_run(tmp_path):
        pass  # free again once it was let go: nothing is raised


def test_a_disk_that_fills_up_is_a_store_error_at_the_line_that_did_not_fit(tmp_path: Path) -> None:
    folder = store.TrialFolder(tmp_path, started())
    with folder, open("/dev/full", "wb", buffering=0) as full:  # noqa: PTH123
        mine, folder._requests = folder._requests, full
        try:
            with pytest.raises(StoreError, match="No space left") as caught:
                folder.append_request(request(0))
        finally:
            folder._requests = mine
    assert "--resume" in (caught.value.next_move or "")


def test_samples_that_find_no_room_at_the_end_are_a_store_error(tmp_path: Path) -> None:
    folder = store.TrialFolder(tmp_path, started()).__enter__()
    assert folder._samples is not None
    folder._samples.close()
    folder._samples = open("/dev/full", "wb")  # noqa: PTH123, SIM115
    folder.append_sample(EngineSample(t_s=0.1))
    with pytest.raises(StoreError, match="No space left"):
        folder.__exit__(None, None, None)


def test_a_line_written_twice_or_backwards_in_time_counts_as_damaged(tmp_path: Path) -> None:
    with store.TrialFolder(tmp_path, started()) as folder:
        folder.append_request(request(0))
        folder.append_request(request(0))
        folder.append_request(replace(request(1), sent_s=5.0))
    trial = store.read_trial(tmp_path / started().trial.trial_id)
    assert [record.index for record in trial.requests] == [0]
    assert trial.damaged_lines == 2


def test_a_trial_listed_twice_is_damage_not_twice_the_evidence(tmp_path: Path) -> None:
    folder = store.new_run_folder(tmp_path, "x")
    store.write_bench(folder, replace(BENCH, trial_ids=("a", "a")))
    with pytest.raises(StoreError, match="listed twice"):
        store.read_bench(folder)


def test_a_file_is_replaced_whole_or_stays_as_it_was_and_nothing_is_left_beside(
    tmp_path: Path,
) -> None:
    place = tmp_path / "page.html"
    store.write_whole(place, "before")
    store.write_whole(place, b"after \xc3\xa9")
    assert place.read_text(encoding="utf-8") == "after é"
    # A folder is in the way of the move.
    taken = tmp_path / "taken"
    (taken / "inner").mkdir(parents=True)
    with pytest.raises(OSError, match="taken"):
        store.write_whole(taken, "text")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["page.html", "taken"]


def test_the_neighbour_of_a_replaced_file_is_not_touched(tmp_path: Path) -> None:
    neighbour = tmp_path / "page.html.tmp"
    neighbour.write_text("somebody's")
    store.write_whole(tmp_path / "page.html", "text")
    assert neighbour.read_text() == "somebody's"


def test_the_latest_run_by_name_is_the_latest_in_which_something_was_measured(
    tmp_path: Path,
) -> None:
    folders = []
    for number, status in enumerate(("sealed", "sealed", "failed")):
        folder = tmp_path / "x" / f"2030010{number}-000000-aaaa"
        folder.mkdir(parents=True)
        trial = replace(started(), trial=replace(started().trial, trial_id="a"))
        store.write_bench(folder, replace(BENCH, run_id=folder.name, trial_ids=("a",)))
        with store.TrialFolder(folder, trial) as opened:
            opened.seal_with(status=status)
        folders.append(folder)
    assert store.find_run("x", tmp_path) == folders[1]
    # Asked for by itself it is there, too; and where nothing was ever measured, the latest is.
    assert store.find_run(folders[2].name, tmp_path) == folders[2]
    (tmp_path / "y").mkdir()
    folders[2].rename(tmp_path / "y" / folders[2].name)
    assert store.find_run("y", tmp_path).name == folders[2].name


def test_half_a_surrogate_pair_costs_no_record_wherever_it_stands(tmp_path: Path) -> None:
    half, mark = "bad \ud800", "bad \ufffd"
    with store.TrialFolder(tmp_path, started()) as folder:
        folder.append_request(replace(request(0), error=half, text=half))
        facts = replace(started().trial, server_flags={half: [half, 1, None]})
        folder.seal(replace(started(), reason=half, trial=facts, status="sealed"))
    trial = store.read_trial(folder.path)
    assert (trial.requests[0].error, trial.requests[0].text) == (mark, mark)
    assert trial.requests[0].chunk_times_s == (0.1, 0.2)
    assert (trial.run.reason, trial.run.trial.server_flags) == (mark, {mark: [mark, 1, None]})
    store.write_bench(tmp_path, replace(BENCH, command=(half,)))
    assert store.read_manifest(tmp_path).command == (mark,)
    store.answers_file(tmp_path, "a").append(QualityAnswer(0, error=half))
    assert mark in (tmp_path / "quality" / "a" / store.ANSWERS_FILE).read_text()
