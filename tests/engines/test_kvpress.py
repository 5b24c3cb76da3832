"""kvpress's process: what it is asked and answers, with a policy of a stand-in and a tiny model."""

from __future__ import annotations

import json
import math
import re
import shutil
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

from harness.engines.kvpress import (
    KvpressEngine,
    KvpressFacts,
    KvpressSpec,
    ScoreReply,
    ScoreRequest,
    missing,
)
from harness.engines.kvpress_env import child
from harness.errors import EngineMissing, ServerDied
from tests.engines import tiny_llama

ROOT = Path(__file__).resolve().parents[2]
TOKENS = tuple((7 * place) % 127 + 1 for place in range(60))


@pytest.fixture
def engine(kvpress_child: KvpressEngine) -> KvpressEngine:
    return kvpress_child


def asked(press: str = "none", ratio: float = 0.0, **changes: object) -> ScoreRequest:
    given = {"tokens": TOKENS, "prefill": 40, "positions": (41, 45, 59), "index": 3}
    return ScoreRequest(press=press, compression_ratio=ratio, **{**given, **changes})  # type: ignore[arg-type]


def score(engine: KvpressEngine, wanted: ScoreRequest) -> ScoreReply:
    found = engine.score(wanted, timeout_s=60)
    assert isinstance(found, ScoreReply), found
    return found


def test_it_tells_what_it_is_made_of(engine: KvpressEngine) -> None:
    assert engine.facts is not None
    assert (engine.facts.kvpress, engine.facts.dtype, engine.facts.device) == (
        "0.0.1",
        "float32",
        "cpu",
    )
    assert engine.startup_s is not None


def test_without_a_policy_everything_stays_and_scores_are_those_of_one_pass(
    engine: KvpressEngine,
) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    whole = AutoModelForCausalLM.from_pretrained(engine.spec.model)
    with torch.inference_mode():
        rows = whole(torch.tensor([TOKENS])).logits[0].log_softmax(-1)
    found = score(engine, asked())
    assert (found.index, found.kept_tokens) == (3, 40)
    assert found.cache_bytes == 40 * tiny_llama.FP32_BYTES_PER_TOKEN
    for slot, place in enumerate((41, 45, 59)):
        row = rows[place - 1]
        assert math.isclose(found.logprobs[slot], float(row[TOKENS[place]]), abs_tol=1e-4)
        assert found.ranks[slot] == 1 + int((row > row[TOKENS[place]]).sum())
        assert found.top_ids[slot][0] == int(row.argmax())
        assert TOKENS[place] in found.top_ids[slot]


def test_a_policy_leaves_as_many_tokens_and_bytes_as_its_ratio_says(engine: KvpressEngine) -> None:
    """Half of 40 tokens, 512 bytes each; what was dropped changes the tail's probabilities."""
    bare, found = score(engine, asked()), score(engine, asked("streaming_llm", 0.5))
    assert found.kept_tokens == 20
    assert found.cache_bytes == 20 * tiny_llama.FP32_BYTES_PER_TOKEN
    assert found.logprobs != bare.logprobs


def test_a_policy_leaves_no_trace_on_the_next_request(engine: KvpressEngine) -> None:
    before = score(engine, asked())
    score(engine, asked("streaming_llm", 0.5))
    assert score(engine, asked()) == before


def test_what_the_model_refuses_is_a_reason_and_the_next_prompt_is_served(
    engine: KvpressEngine,
) -> None:
    told = engine.score(asked(tokens=(*TOKENS[:50], 9999, *TOKENS[51:])), timeout_s=60)
    assert isinstance(told, str)
    assert "Error" in told
    assert score(engine, asked()).kept_tokens == 40


def test_a_token_beyond_the_likeliest_is_listed_too() -> None:
    import torch

    row = torch.linspace(3.0, -3.0, 50)
    told = child.listed(row, 40)
    assert told["rank"] == 41
    assert told["top_ids"] == [*range(20), 40]
    assert told["top_logprobs"][-1] == told["logprob"]
    assert child.listed(row, 2)["top_ids"] == list(range(20))


def test_where_its_environment_is_missing_the_reason_names_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KVBENCH_KVPRESS_PYTHON", str(tmp_path / "python"))
    assert "`make kvpress ARGS=--setup-only` builds it" in (missing() or "")
    monkeypatch.setenv("KVBENCH_KVPRESS_PYTHON", sys.executable)
    assert missing() is None


def stands_in(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """A few lines of shell in the place of the Python that has kvpress."""
    python = folder / "python"
    python.write_text(f"#!/bin/sh\n{script}\n")
    python.chmod(0o755)
    monkeypatch.setenv("KVBENCH_KVPRESS_PYTHON", str(python))


def test_a_python_without_kvpress_is_named_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    says = "ModuleNotFoundError: No module named 'kvpress'"
    stands_in(tmp_path, monkeypatch, f'echo "{says}" >&2; exit 1')
    with pytest.raises(EngineMissing) as caught:
        KvpressEngine.launch(KvpressSpec("model"), tmp_path / "log", timeout_s=30)
    assert "make kvpress ARGS=--setup-only" in (caught.value.next_move or "")


@pytest.mark.parametrize(
    ("arguments", "ran"), [(["--setup-only"], False), (["--ratio", "1"], True)]
)
def test_the_environment_can_be_built_without_measuring_the_table(
    tmp_path: Path, arguments: list[str], ran: bool
) -> None:
    script = ROOT / "requirements" / "kvpress.sh"
    (tmp_path / "requirements").mkdir()
    copied = Path(shutil.copy(script, tmp_path / "requirements"))
    marks = tmp_path / "ran"
    # An environment that was built already, and a model: each is one line that tells of its call.
    for name, line in (
        (".venv/bin/kvbench", "echo model"),
        (".venv-kvpress/bin/python", "echo $@"),
    ):
        tool = tmp_path / name
        tool.parent.mkdir(parents=True)
        tool.write_text(f'#!/bin/sh\n{line}\necho {name} >>"{marks}"\n')
        tool.chmod(0o755)
    pins = dict(re.findall(r"^(kvpress|torch)=([0-9.]+)$", script.read_text(), re.MULTILINE))
    torch = pins["torch"] + ("" if shutil.which("nvidia-smi") else "+cpu")
    (tmp_path / ".venv-kvpress" / "kvbench-pins").write_text(
        f"kvpress=={pins['kvpress']} torch=={torch}\n"
    )
    done = subprocess.run(
        ["/bin/sh", str(copied), *arguments], capture_output=True, text=True, check=True, timeout=30
    )
    assert marks.exists() is ran
    assert ("--ratio 1" in done.stdout) is ran


def test_a_child_that_dies_ends_the_wait_with_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = KvpressFacts("0.5.5", "5.0.0", "2.9.0", "float32", "cpu")
    ready = json.dumps({"ready": asdict(loaded)})
    stands_in(tmp_path, monkeypatch, f"read told; echo '{ready}'; echo so far >&2; exec sleep 60")
    dying = KvpressEngine.launch(KvpressSpec("model"), tmp_path / "log", timeout_s=30)
    try:
        assert dying.facts == loaded
        dying._child.kill()
        with pytest.raises(ServerDied, match="kvpress ended with exit code -9"):
            dying.score(asked(), timeout_s=30)
    finally:
        dying.stop()
