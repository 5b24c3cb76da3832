"""Launch, await, stop: with a stand-in behind the real guard, and every ending there is."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import pytest

from harness.engines import attached, vllm
from harness.errors import EngineMissing, ServerStartError
from harness.telemetry.process import listens
from tests.processes import command_lines, gone
from tests.standin.process import StandIn

ROOT = Path(__file__).resolve().parents[2]
SPEC = vllm.ServerSpec("some/model", {"kv_cache_memory_bytes": 117_964_800}, {}, offline=True)
LOGS = ROOT / "tests" / "data" / "server_logs"


def launch(tmp_path: Path, spec: vllm.ServerSpec = SPEC, timeout_s: float = 120.0) -> vllm.Server:
    return vllm.Server.launch(spec, tmp_path / "server.log", timeout_s=timeout_s)


def told(what: str, **flags: object) -> vllm.ServerSpec:
    return vllm.ServerSpec("some/model", flags, {"FAKE_ENGINE": what}, offline=True)


def test_the_command_line_is_complete_and_bound_to_this_machine() -> None:
    command = vllm.server_command(
        vllm.ServerSpec("m", {"kv_cache_dtype": "fp8", "enable_prefix_caching": False}), 1234
    )
    assert command[1:3] == ("-m", "vllm.entrypoints.openai.api_server")
    assert command[command.index("--host") + 1] == "127.0.0.1"
    assert command[-3:] == ("--kv-cache-dtype", "fp8", "--no-enable-prefix-caching")


@pytest.mark.usefixtures("fake_engine")
def test_a_server_is_healthy_after_launch_and_gone_after_stop(tmp_path: Path) -> None:
    server = launch(tmp_path)
    assert server.alive()
    assert server.pid is not None
    assert server.startup_s is not None
    assert server.startup_s > 0
    assert attached.facts(server.api_url, None).served_model == vllm.SERVED_NAME
    server.stop()
    assert gone(server.pid)
    assert not server.alive()
    # Nothing is left to be stopped.
    server.stop()


@pytest.mark.usefixtures("fake_engine")
def test_stages_are_told_while_the_server_starts(tmp_path: Path) -> None:
    stages: list[str] = []
    server = vllm.Server.launch(
        told("slow:1"),
        tmp_path / "server.log",
        timeout_s=120,
        on_stage=lambda stage, _elapsed: stages.append(stage),
    )
    server.stop()
    assert stages
    assert stages[0] == "importing vLLM"


@pytest.mark.usefixtures("fake_engine")
def test_a_server_that_is_never_healthy_is_given_up_and_ended(tmp_path: Path) -> None:
    with pytest.raises(ServerStartError, match="not healthy after 1 s"):
        launch(tmp_path, told("slow:60"), timeout_s=1.0)
    assert [line for line in command_lines() if vllm.MODULE in line] == []


@pytest.mark.usefixtures("fake_engine")
@pytest.mark.parametrize(
    ("log", "kind"),
    [("unknown_flag", "flag"), ("too_small", "memory"), ("model_not_found", "model")],
)
def test_a_failed_start_tells_the_reason_from_the_log(tmp_path: Path, log: str, kind: str) -> None:
    with pytest.raises(ServerStartError) as caught:
        launch(tmp_path, told(f"log:{LOGS / log}.log"))
    assert caught.value.kind == kind
    assert caught.value.next_move
    assert caught.value.evidence


def test_a_python_without_vllm_is_an_engine_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S -I "$@"\n')
    bare.chmod(0o755)
    monkeypatch.setenv("KVBENCH_ENGINE_PYTHON", str(bare))
    with pytest.raises(EngineMissing, match="not installed") as caught:
        launch(tmp_path)
    assert (caught.value.where, caught.value.kind) == (str(bare), "engine")


def test_a_python_that_is_not_there_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KVBENCH_ENGINE_PYTHON", str(tmp_path / "nowhere"))
    with pytest.raises(ServerStartError) as caught:
        launch(tmp_path)
    assert "can't start" in str(caught.value)


@pytest.mark.usefixtures("fake_engine")
def test_a_killed_server_is_noticed_with_its_log(tmp_path: Path) -> None:
    with launch(tmp_path) as server:
        assert server.death() is None
        assert server.pid is not None
        os.kill(server.pid, signal.SIGKILL)
        server._guard.wait(30)
        death = server.death()
    assert death is not None
    assert "signal 9" in death


@pytest.mark.usefixtures("fake_engine")
def test_children_that_ignore_sigterm_are_killed_with_the_server(tmp_path: Path) -> None:
    server = launch(tmp_path, told("stubborn"))
    keeper = psutil.Process(server._guard.pid)
    family = [process.pid for process in keeper.children(recursive=True)]
    assert len(family) == 2
    assert server.pid is not None
    os.kill(server.pid, signal.SIGKILL)
    assert all(gone(pid, 20.0) for pid in family)
    server.stop()


CRASHING = """
import os, signal, sys
from pathlib import Path
import psutil
from harness.engines import vllm
spec = vllm.ServerSpec("m", {}, {"FAKE_ENGINE": sys.argv[2]}, offline=True)
server = vllm.Server.launch(spec, Path(sys.argv[1]), timeout_s=120, grace_s=1)
guard = psutil.Process(server._guard.pid)
print(guard.pid, *(child.pid for child in guard.children(recursive=True)), flush=True)
if sys.argv[3] == "kill":
    os.kill(os.getpid(), signal.SIGKILL)
raise RuntimeError("a bug")
"""


@pytest.mark.usefixtures("fake_engine")
@pytest.mark.parametrize(("engine", "ending"), [("", "crash"), ("", "kill"), ("stubborn", "kill")])
def test_a_harness_that_dies_leaves_no_server(tmp_path: Path, engine: str, ending: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", CRASHING, str(tmp_path / "server.log"), engine, ending],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        check=False,
        timeout=180,
    )
    family = [int(word) for word in done.stdout.split()]
    assert done.returncode != 0
    assert len(family) == (3 if engine == "stubborn" else 2)
    # What ignores SIGTERM is killed after the guard's time of grace.
    assert all(gone(pid) for pid in family)


@pytest.mark.usefixtures("fake_engine")
def test_a_killed_guard_takes_the_server_with_it(tmp_path: Path) -> None:
    server = launch(tmp_path)
    assert server.pid is not None
    os.kill(server._guard.pid, signal.SIGKILL)
    assert gone(server.pid)
    server.stop()


def test_nothing_secret_or_misleading_is_recorded_or_handed_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("VLLM_API_KEY", "s3cret")
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "40")
    monkeypatch.setenv("HF_TOKEN", "hf_s3cret")
    monkeypatch.setenv("VLLM_LOGGING_LEVEL", "INFO")
    monkeypatch.setenv("TORCH_INDEX", "https://wheels.example/cpu")
    monkeypatch.setenv("VLLM_RINGBUFFER_URL", "https://me:s3cret@host.example/x")
    monkeypatch.setenv("VLLM_X", "http://host.example/?api_key=s3cret")
    monkeypatch.setenv("VLLM_AUTH", "s3cret")
    monkeypatch.setenv("KVBENCH_JUDGE_API_KEY", "s3cret")
    monkeypatch.setenv("OPENAI_API_KEY", "s3cret")
    recorded = vllm.recorded_env(SPEC)
    assert recorded["VLLM_LOGGING_LEVEL"] == "INFO"
    assert recorded["VLLM_NO_USAGE_STATS"] == "1"
    assert recorded["HF_HUB_OFFLINE"] == "1"
    assert "s3cret" not in json.dumps(recorded)
    assert "TORCH_INDEX" not in recorded
    handed_on = vllm._full_env(SPEC)
    assert "VLLM_API_KEY" not in handed_on
    assert "KVBENCH_JUDGE_API_KEY" not in handed_on
    assert "OPENAI_API_KEY" not in handed_on
    assert "VLLM_CPU_KVCACHE_SPACE" not in handed_on
    assert handed_on["HF_TOKEN"].endswith("s3cret")


@pytest.mark.usefixtures("fake_engine")
def test_a_stranger_that_took_the_port_is_not_measured_in_our_servers_place(
    tmp_path: Path, own_standin: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stand-in is healthy from the start on the port that our server was given."""
    taken = urlsplit(own_standin.origin).port
    assert taken is not None
    given, really_free = [taken], vllm.free_port
    monkeypatch.setattr(vllm, "free_port", lambda: given.pop() if given else really_free())
    server = launch(tmp_path)
    try:
        assert server.port != taken
        assert server.pid is not None
        assert listens(server.pid, server.port) is True
        assert listens(server.pid, taken) is False
        # The try that found its port taken left its own log, and no line of it in the second's.
        assert "in use" in (tmp_path / "server.2.log").read_text()
        assert "in use" not in server.log()
    finally:
        server.stop()


@pytest.mark.usefixtures("fake_engine")
def test_the_reason_of_a_second_try_is_its_own_and_not_the_taken_port(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries = tmp_path / "tries"
    engine = tmp_path / "engine"
    # The first start finds its port taken, the second says nothing that any pattern knows.
    engine.write_text(
        f'#!/bin/sh\nif mkdir {tries}; then echo "OSError: [Errno 98] Address already in use"; '
        "else echo 'ZeroDivisionError: of the second try'; fi\nexit 1\n"
    )
    engine.chmod(0o755)
    monkeypatch.setenv("KVBENCH_ENGINE_PYTHON", str(engine))
    with pytest.raises(ServerStartError, match="of the second try") as caught:
        launch(tmp_path)
    assert caught.value.kind == "unknown"
    assert "already in use" not in (caught.value.evidence or "")
    assert "already in use" in (tmp_path / "server.2.log").read_text()
