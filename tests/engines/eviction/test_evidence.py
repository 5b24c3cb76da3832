"""A server that was asked to evict must say so, by the rule asked for."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.engines import server_log, vllm
from harness.engines.eviction.evidence import in_force_line, require_in_force, snapkv_line
from harness.errors import ServerStartError
from harness.specs.eviction import SnapKvRule
from tests.processes import command_lines

ENV = {"KVBENCH_EVICTION": "sinks=4,window=512"}
LINE = in_force_line(4, 1, 512, 32, 26)


def test_the_line_says_what_is_kept_and_what_it_means() -> None:
    assert LINE == (
        "KV eviction in force: sinks 4 tokens (1 block), window 512 tokens, blocks of 32 tokens, "
        "at most 26 blocks per request; what lies between is freed, so answers to longer prompts "
        "differ from full attention"
    )


def test_a_log_with_the_line_passes_in_whatever_frame() -> None:
    require_in_force(ENV, f"INFO a\n(EngineCore pid=1) WARNING 11-29 [manager.py:36] {LINE}\nmore")


def test_the_rule_by_score_says_what_is_kept_of_a_prompt() -> None:
    assert snapkv_line(SnapKvRule(500), 16, 32) == (
        "KV eviction in force: SnapKV keeps 500 tokens (16 blocks) of each prompt, chosen by its "
        "last 64, per layer and KV head, blocks of 32 tokens; the rest is freed once the prompt is "
        "computed, so answers to longer prompts differ from full attention"
    )


@pytest.mark.parametrize(
    "log", [LINE, snapkv_line(SnapKvRule(512, 32), 16, 32), snapkv_line(SnapKvRule(256), 8, 32)]
)
def test_another_rule_does_not_pass_for_the_one_by_score(log: str) -> None:
    asked = {"KVBENCH_EVICTION": "snapkv=512"}
    require_in_force(asked, f"WARNING 11-29 [manager.py:36] {snapkv_line(SnapKvRule(512), 16, 32)}")
    with pytest.raises(ServerStartError, match="does not say that the rule is in force"):
        require_in_force(asked, log)
    with pytest.raises(ServerStartError, match="does not say that the rule is in force"):
        require_in_force({"KVBENCH_EVICTION": "sinks=9,window=9"}, log)


def test_a_server_that_was_not_asked_owes_no_line() -> None:
    require_in_force({}, "nothing")


@pytest.mark.parametrize("log", ["INFO nothing of the kind", in_force_line(4, 1, 256, 32, 26)])
def test_a_missing_or_another_rule_is_no_silent_fallback(log: str) -> None:
    with pytest.raises(ServerStartError, match="does not say that the rule is in force") as caught:
        require_in_force(ENV, log)
    assert caught.value.kind == "engine"
    assert "VLLM_PLUGINS" in (caught.value.next_move or "")


@pytest.mark.usefixtures("fake_engine")
def test_a_launched_server_that_does_not_evict_is_given_up_and_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stand-in serves, but says nothing of eviction: as an engine without the plugin."""
    monkeypatch.setenv("FAKE_ENGINE", "unpluggable")
    spec = vllm.ServerSpec("some/model", {}, ENV, offline=True)
    with pytest.raises(ServerStartError, match="does not say that the rule is in force"):
        vllm.Server.launch(spec, tmp_path / "server.log", timeout_s=120)
    assert [line for line in command_lines() if vllm.MODULE in line] == []


def test_a_rule_in_ones_own_shell_reaches_no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVBENCH_EVICTION", "sinks=4,window=512")
    assert "KVBENCH_EVICTION" not in vllm._full_env(vllm.ServerSpec("m"))
    asked = vllm.ServerSpec("m", {}, {"KVBENCH_EVICTION": "sinks=8,window=64"})
    assert vllm._full_env(asked)["KVBENCH_EVICTION"] == "sinks=8,window=64"
    assert vllm.recorded_env(asked)["KVBENCH_EVICTION"] == "sinks=8,window=64"


def test_a_refusal_in_the_log_is_told_as_one_and_skips_the_variant() -> None:
    log = (
        "(EngineCore pid=9) ERROR 11-29 17:00:00 [core.py:1] Traceback (most recent call last):\n"
        "(EngineCore pid=9) ERROR 11-29 17:00:00 [core.py:1] harness.engines.eviction.refusals."
        "EvictionRefused: KVBENCH_EVICTION refused: not tested with speculative decoding\n"
    )
    failure = server_log.explain_failure(log, 1)
    assert failure.kind == "unsupported"
    assert failure.reason == (
        "token eviction is refused here: not tested with speculative decoding"
    )


def test_a_rule_that_can_not_be_read_is_a_fault_of_the_scenario() -> None:
    log = "harness.errors.InputError: KVBENCH_EVICTION: the eviction rule 'sinks=1' lacks window\n"
    failure = server_log.explain_failure(log, 1)
    assert failure.kind == "flag"
    assert failure.reason.endswith("the eviction rule 'sinks=1' lacks window")
