"""The command line as a user meets it: exit codes, stdout for figures, stderr for the rest."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from harness.cli.app import build, main
from harness.engines import hub
from harness.errors import NotFound
from tests.execute.test_local import CONFIG, SCENARIO

ROOT = Path(__file__).resolve().parents[2]


def kvbench(
    *words: str, cwd: Path = ROOT, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "harness.cli.app", *words],
        cwd=cwd,
        env={**os.environ, **(env or {}), "COLUMNS": "120"},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


#: What a process of kvbench leaves behind: exit code, standard output, standard error.
Ended = tuple[int, str, str]


@pytest.fixture
def within(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Ended]:
    """The whole program without a process of its own, which takes a second to start."""

    def run(*words: str) -> Ended:
        monkeypatch.chdir(ROOT)
        monkeypatch.setenv("COLUMNS", "120")
        monkeypatch.setattr(sys, "argv", ["kvbench", *words])
        capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            main()
        told = capsys.readouterr()
        assert isinstance(end.value.code, int)
        return end.value.code, told.out, told.err

    return run


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text(CONFIG)
    path = tmp_path / "demo.yaml"
    path.write_text(SCENARIO.format(model=model))
    return path


def test_plan_prints_every_trial_and_launches_nothing(scenario: Path) -> None:
    done = kvbench("plan", str(scenario), "--profile", "cpu")
    assert done.returncode == 0, done.stderr
    assert "40 blocks = 5,120 tokens" in done.stdout
    assert "80 blocks = 10,240 tokens" in done.stdout
    assert "--kv-cache-memory-bytes 117964800" in done.stdout
    assert "estimate from assumed rates" in done.stdout


def test_plan_tells_repeats_of_one_server_once_and_the_quality_part(
    scenario: Path, within: Callable[..., Ended]
) -> None:
    """2 needle kinds × 1 context × 5 depths are 10 questions."""
    asked = ("quality.num_prompts=6", "quality.context_tokens=128", "quality.answer_tokens=8")
    needles = ("quality.needles.context_tokens=[64]",)
    sets = [word for text in (*asked, *needles) for word in ("--set", text)]
    code, out, err = within("plan", str(scenario), "--profile", "cpu", "--repeats", "3", *sets)
    assert code == 0, err
    assert "6 trials in 6 server launches" in out
    assert "launches 1, 4, 5: variant fp16, repeats 1, 2, 3" in out
    assert out.count("  $ ") == 2  # a command per variant, not per repeat
    assert out.count("      fp") == 6  # and every trial's name
    assert "quality: 6 prompts of 128 tokens with answers of 8 and 10 questions" in out
    _, once, _ = within("plan", str(scenario), "--profile", "cpu", "--repeats", "1")
    assert "launch 1: variant fp16, repeat 1\n" in once
    assert "quality" not in once


def test_plan_as_json_is_json_alone_on_stdout(scenario: Path) -> None:
    done = kvbench("plan", str(scenario), "--profile", "cpu", "--json", "--set", "repeats=2")
    plan = json.loads(done.stdout)
    assert [trial["variant"] for trial in plan["trials"]] == ["fp16", "fp8", "fp8", "fp16"]
    assert plan["trials"][0]["theory"]["kv_bytes_per_token"] == 23_040
    assert "profile: cpu" in done.stderr


def test_plan_says_what_a_request_holds_once_its_prompt_was_cut(
    scenario: Path, within: Callable[..., Ended]
) -> None:
    """900 tokens are 7 whole blocks of 128 and 4 tokens; 4 stay of 7, so 384 tokens go.

    8 blocks hold the prompt; at 904 tokens 520 are left, in 5.
    """
    cut = 'cut: {env: {KVBENCH_EVICTION: "snapkv=512"}, enable_chunked_prefill: false}'
    text = scenario.read_text().replace("fp8: {kv_cache_dtype: fp8}", cut)
    scenario.write_text(text.replace("context_tokens: 64", "context_tokens: 900"))
    code, out, err = within("plan", str(scenario), "--profile", "cpu")
    assert code == 0, err
    assert out.count("each holds up to 8 blocks, 5 while it answers") == 1
    assert "token eviction by score (snapkv=512,observe=64): 4 blocks of 128 stay" in out
    told = json.loads(within("plan", str(scenario), "--profile", "cpu", "--json")[1])
    held = {trial["variant"]: trial["theory"]["blocks_held"] for trial in told["trials"]}
    assert held == {"fp16": None, "cut": {"most": 8, "decoding": 5}}


def test_plan_counts_a_shared_prefix_once(scenario: Path, within: Callable[..., Ended]) -> None:
    """904 tokens are 8 blocks of 128, of which 512 shared tokens are 4; 39 of 40 can be used.

    Apart 40 / 8 = 5 fit, sharing (39 - 4) // (8 - 4) = 8.
    """
    own = "shared: {enable_prefix_caching: true}"
    text = scenario.read_text().replace("fp8: {kv_cache_dtype: fp8}", own)
    longer = "context_tokens: 900, shared_prefix_tokens: 512"
    scenario.write_text(text.replace("context_tokens: 64", longer))
    code, out, err = within("plan", str(scenario), "--profile", "cpu")
    assert code == 0, err
    once = "5.00 such requests fit the pool on their own, 8 with the 4 blocks of their prefix"
    assert out.count(once) == 1
    assert out.count("5.00 such requests fit the pool, each with its own prefix") == 1


def test_plan_says_what_a_request_holds_under_sinks_and_a_window(
    scenario: Path, within: Callable[..., Ended]
) -> None:
    """900 tokens and 4 to come in blocks of 128, sinks 64 and a window of 256, 128 in flight.

    At its worst 255 + 128 = 383 tokens are 3 blocks, one for the edge and one of sinks: 5. While it
    answers the window begins at 900 − 255 = 645, in block 5: blocks 5 to 7 and that of the sinks.
    """
    evict = 'evict: {env: {KVBENCH_EVICTION: "sinks=64,window=256"}, max_num_batched_tokens: 128}'
    text = scenario.read_text().replace("fp8: {kv_cache_dtype: fp8}", evict)
    scenario.write_text(text.replace("context_tokens: 64", "context_tokens: 900"))
    told = json.loads(within("plan", str(scenario), "--profile", "cpu", "--json")[1])
    held = {trial["variant"]: trial["theory"]["blocks_held"] for trial in told["trials"]}
    assert held == {"fp16": None, "evict": {"most": 5, "decoding": 4}}


@pytest.mark.parametrize("name", sorted(p.stem for p in (ROOT / "scenarios").glob("*.yaml")))
@pytest.mark.parametrize("profile", ["cpu", "cuda"])
def test_every_shipped_scenario_can_be_planned_offline(
    name: str, profile: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreachable(model: str) -> None:
        raise NotFound(f"the configuration of {model!r} is not to be had")

    # The hub's library reads HF_HUB_OFFLINE once, when it is imported: here the hub itself is shut.
    monkeypatch.setattr(hub, "fetch_config", unreachable)
    monkeypatch.setenv("KVBENCH_CACHE", "/nonexistent")
    monkeypatch.chdir(ROOT)
    words = ["plan", name, "--profile", profile, "--json"]
    done = CliRunner().invoke(build(words), words, catch_exceptions=False)
    assert done.exit_code == 0, done.stderr
    plan = json.loads(done.stdout)
    assert plan["trials"]
    assert plan["estimate"]["total_s"] > 0


def test_a_process_of_its_own_plans_offline_too() -> None:
    offline = {"HF_HUB_OFFLINE": "1", "KVBENCH_CACHE": "/nonexistent"}
    done = kvbench("plan", "smoke", "--profile", "cuda", "--json", env=offline)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["trials"]


@pytest.mark.usefixtures("fake_engine")
def test_bench_prints_figures_on_stdout_and_writes_the_report(
    scenario: Path, tmp_path: Path
) -> None:
    done = kvbench("bench", str(scenario), "--profile", "cpu", "--json", cwd=tmp_path, env=home())
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    assert [row["status"] for row in figures["rows"]] == ["sealed", "sealed"]
    assert figures["rows"][1]["engine"]["kv_cache_tokens"] == 10_240
    assert (tmp_path / figures["report"]).is_file()
    assert (tmp_path / figures["run"] / "bench.json").is_file()
    assert "kvbench itself" in done.stderr
    again = kvbench("report", "demo", "--json", cwd=tmp_path, env=home())
    assert json.loads(again.stdout)["rows"] == figures["rows"]


@pytest.mark.usefixtures("fake_engine")
def test_a_bench_reads_each_trials_requests_once(
    scenario: Path, tmp_path: Path, within: Callable[..., Ended], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A large run must not be read and analysed once for the table and again for the page."""
    reads: list[Path] = []
    opened = Path.open

    def noting(path: Path, mode: str = "r", *more: Any, **named: Any) -> Any:
        if path.name == "requests.jsonl" and mode == "rb":
            reads.append(path)
        return opened(path, mode, *more, **named)

    monkeypatch.setattr(Path, "open", noting)
    places = ("--out", str(tmp_path / "results"), "--reports", str(tmp_path / "reports"))
    code, _, told = within("bench", str(scenario), "--profile", "cpu", *places)
    assert code == 0, told
    assert len(reads) == len(set(reads)) == 2


def home() -> dict[str, str]:
    return {"PYTHONPATH": str(ROOT)}


@pytest.mark.usefixtures("fake_engine")
def test_a_bench_in_which_everything_fails_is_exit_1_with_the_reason(
    scenario: Path, tmp_path: Path
) -> None:
    log = ROOT / "tests" / "data" / "server_logs" / "too_small.log"
    env = {**home(), "FAKE_ENGINE": f"log:{log}"}
    done = kvbench("bench", str(scenario), "--profile", "cpu", cwd=tmp_path, env=env)
    assert done.returncode == 1
    assert "no trial could be measured" in done.stderr
    assert "too small for one request" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("bench", "nope"), "there is no scenario 'nope'"),
        (("bench", "smok"), "did you mean 'smoke'?"),
        (("plan", "missing.yaml"), "no such scenario file"),
        (("plan", "smoke", "--profile", "gpu"), "there is no profile 'gpu'"),
        (("plan", "smoke", "--profile", "cpu", "--set", "repeat=1"), "did you mean 'repeats'?"),
        (("report", "nothing-here"), "there is no stored run"),
        (("bench", "smoke", "--url", "nonsense", "--profile", "cpu"), "is no URL of a server"),
    ],
)
def test_bad_input_is_exit_2_without_a_stack_trace(
    words: tuple[str, ...], message: str, within: Callable[..., Ended]
) -> None:
    code, out, err = within(*words)
    assert code == 2
    assert message in err
    assert "Traceback" not in err
    assert out == ""


def test_a_process_given_bad_input_ends_in_the_same_way() -> None:
    done = kvbench("bench", "smok")
    assert done.returncode == 2
    assert "did you mean 'smoke'?" in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_the_version_is_printed() -> None:
    assert kvbench("--version").stdout.startswith("kvbench ")


def test_a_reader_that_leaves_early_is_no_error(scenario: Path) -> None:
    pipe = (
        f"{sys.executable} -m harness.cli.app plan {scenario} --profile cpu --set repeats=200 "
        "2>/dev/null | head -1; exit ${PIPESTATUS[0]}"
    )
    done = subprocess.run(
        ["/bin/bash", "-c", pipe],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.stdout.startswith("demo")
    assert done.returncode == 0


def test_a_reader_who_takes_nothing_is_no_error_either(scenario: Path) -> None:
    # The end that is read is closed before anything is written, whatever the timing.
    line = f"{sys.executable} -m harness.cli.app plan {scenario} --profile cpu"
    read_end, write_end = os.pipe()
    os.close(read_end)
    done = subprocess.run(
        line.split(), cwd=ROOT, stdout=write_end, stderr=subprocess.PIPE, check=False, timeout=60
    )
    os.close(write_end)
    assert done.returncode == 0
    assert b"Traceback" not in done.stderr


def in_shell(line: str, scenario: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """Run a shell line in which KVBENCH and SCENARIO are filled in."""
    command = line.replace("KVBENCH", f"{sys.executable} -m harness.cli.app").replace(
        "SCENARIO", str(scenario)
    )
    return subprocess.run(
        ["bash", "-c", command],  # noqa: S607 - whichever the PATH has
        cwd=ROOT,
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        # An output in another encoding is looked at for its plain letters.
        errors="replace",
        check=False,
        timeout=120,
    )


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_a_terminal_that_lacks_our_letters_gets_others(scenario: Path, encoding: str) -> None:
    env = {"PYTHONIOENCODING": encoding}
    done = in_shell("KVBENCH calc $(dirname SCENARIO)/model", scenario, **env)
    assert done.returncode == 0, done.stderr
    assert "KV bytes per token" in done.stdout


def test_an_output_on_a_full_disk_is_said_in_a_line(scenario: Path) -> None:
    done = in_shell("KVBENCH plan SCENARIO --profile cpu >/dev/full", scenario)
    assert done.returncode == 1
    assert "No space left" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&- <&-"])
def test_closed_streams_are_no_error(scenario: Path, closed: str) -> None:
    done = in_shell(f"KVBENCH plan SCENARIO --profile cpu {closed}", scenario)
    assert done.returncode == 0
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("command", ["report", "plan", "bench"])
@pytest.mark.parametrize("name", ["x" * 5000, "a/" * 3000 + "b.yaml"])
def test_a_name_longer_than_any_file_is_bad_input(
    command: str, name: str, within: Callable[..., Ended]
) -> None:
    code, _, err = within(command, name)
    assert code == 2
    assert "Traceback" not in err
    assert 0 < len(err) < 2000


def test_a_scenario_may_come_through_a_pipe(scenario: Path) -> None:
    done = in_shell("KVBENCH plan <(cat SCENARIO) --profile cpu", scenario)
    # bash names the pipe /dev/fd/63, which has no suffix but a slash.
    assert done.returncode == 0, done.stderr
    assert "launch 1" in done.stdout


def test_what_others_wrote_cannot_steer_the_terminal() -> None:
    done = kvbench("plan", "no\x1b[2Jsuch")
    assert done.returncode == 2
    assert "\x1b" not in done.stderr
