from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from harness.cli.app import build
from harness.errors import InputError, NotFound

MODEL = "meta-llama/Llama-3.1-8B-Instruct"
CASE = ("--context", "32k", "--concurrency", "64", "--gpu", "a100-80gb")


def run(*words: str) -> str:
    done = CliRunner().invoke(build(words), words, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def test_the_answer_says_that_nothing_was_measured() -> None:
    text = run("advise", MODEL, *CASE)
    assert "64 requests of 32,768 tokens" in text
    assert "theory alone: every figure is modelled, nothing was measured" in text
    assert "recommended: 2 GPUs, FP8 KV cache" in text
    assert "measured;" not in text.replace("nothing was measured;", "")


def test_a_loss_is_called_one_and_the_claims_are_explained() -> None:
    text = run("advise", MODEL, *CASE)
    assert "quality loss: more than with FP8" in text
    assert "Quality loss: said to be minimal (C11)" in text
    assert "quality: " not in text
    assert "C11 to C14 are claims of the textbook chapter" in text


def test_the_scheduler_can_be_told_not_to_run_ahead() -> None:
    def window(*more: str) -> float:
        options = json.loads(run("advise", MODEL, *CASE, "--json", *more))["options"]
        return next(o["concurrency"] for o in options if o["strategy"].startswith("sliding"))

    assert window() == pytest.approx(57.04, abs=0.01)
    assert window("--no-async-scheduling") == pytest.approx(76.0, abs=0.05)


def test_calc_advise_and_plan_charge_a_window_alike(tmp_path: Path) -> None:
    """A window of 4,096 in steps of 2,048: ⌈(4,095 + 4,096) / 16⌉ + 1 = 513 blocks."""
    model = "mistralai/Mistral-7B-v0.1"
    scenario = tmp_path / "window.yaml"
    scenario.write_text(
        "schema: 1\nname: window\nbaseline: own\nmodel: " + model + "\nvariants: {own: {}}\n"
        "server: {max_model_len: 32768}\nkv_budget: {equal_bytes: 57GiB}\n"
        "workloads: [{name: chat, context_tokens: 1024, output_tokens: 16, "
        "concurrency: 4, num_prompts: 8}]\n"
    )
    planned = json.loads(run("plan", str(scenario), "--profile", "cuda", "--json"))["trials"][0]
    theory = planned["theory"]
    calculated = json.loads(run("calc", model, "--gpu", "a100-80gb", "--context", "32k", "--json"))
    assert theory["num_blocks"] / theory["max_concurrency"] == pytest.approx(513)
    assert calculated["layer_groups"][0]["blocks_per_request"] == 513
    assert any("4,096 tokens in flight" in note for note in theory["notes"])
    assert any("4,096 tokens in flight" in note for note in calculated["notes"])


def test_weights_that_exceed_the_card_leave_no_pool_of_negative_size() -> None:
    big = ("meta-llama/Llama-3.1-70B-Instruct", "--context", "8k", "--concurrency", "8")
    text = run("advise", *big, "--gpu", "l4")
    assert "KV pool -" not in text
    assert "no KV pool: " in text
    assert "more than the engine may use (92 % of " in text


def test_every_option_in_json_is_stamped_by_the_whole() -> None:
    found = json.loads(run("advise", MODEL, *CASE, "--shared-prefix", "1000", "--json"))
    assert found["stamp"] == "modelled"
    assert found["options"][0]["capacity_ratio"] == 1.0
    assert found["options"][1]["strategy"] == "sharing a prefix of 1,000 tokens"
    assert next(o for o in found["options"] if o["strategy"] == "CPU offloading")["fits"] is None


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--context", "32x", "--concurrency", "1", "--gpu", "a100-80gb"), "token count"),
        (("--context", "8k", "--concurrency", "1", "--gpu", "a100-80"), "a100-80"),
        ((*CASE, "--gpu-memory-utilization", "1.5"), "not in"),
    ],
)
def test_what_can_not_be_read_is_refused(words: tuple[str, ...], told: str) -> None:
    with pytest.raises((InputError, NotFound), match=told):
        CliRunner().invoke(build(["advise"]), ["advise", MODEL, *words], catch_exceptions=False)
