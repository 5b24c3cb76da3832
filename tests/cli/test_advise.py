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


def test_a_loss_is_called_one_and_bounds_stand_with_their_units() -> None:
    text = run("advise", MODEL, *CASE)
    assert "quality loss: more than with FP8" in text
    assert "Quality loss: usually small; without calibrated scales" in text
    assert "(C1" not in text
    plain = next(row for row in text.splitlines() if row.startswith("paging"))
    assert " tok/s " in plain
    assert " s " in plain
    # What paging replaced is nothing to choose.
    assert "whole-length" not in text


def test_the_heading_names_the_cards_and_the_memory_can_be_given() -> None:
    wide = run("advise", MODEL, *CASE, "--tp", "2")
    assert f"{MODEL} on 2 × a100-80gb: 64 requests" in wide
    given = run("advise", MODEL, *CASE, "--memory-gib", "79.2")
    assert "memory of one a100-80gb: 79.20 GiB, as given" in given
    assert "92 % of 79.20 GiB" in given


def test_what_is_refused_has_a_line_of_its_own() -> None:
    text = run(
        *("advise", "deepseek-ai/DeepSeek-V3", "--context", "16k", "--concurrency", "128"),
        *("--gpu", "h200", "--tp", "8"),
    )
    assert "no figures: INT4 KV cache, scales per token and head: refused: no MLA backend" in text
    assert "no figures: token eviction" in text
    assert "recommended: INT4" not in text
    # 44 fit on a server of eight cards: three servers.
    assert "Lossless: 3 servers as they are (24 GPUs in all, 44 requests on each)" in text


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
    assert found["options"][2]["strategy"] == "FP8 and sharing a prefix of 1,000 tokens"
    assert found["gpus"] == 1
    assert found["notes"]
    assert next(o for o in found["options"] if o["strategy"] == "CPU offloading")["fits"] is None


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--context", "32x", "--concurrency", "1", "--gpu", "a100-80gb"), "token count"),
        (("--context", "8k", "--concurrency", "1", "--gpu", "a100-80"), "a100-80"),
        ((*CASE, "--gpu-memory-utilization", "1.5"), "not in"),
        ((*CASE, "--memory-gib", "nan"), "no size"),
    ],
)
def test_what_can_not_be_read_is_refused(words: tuple[str, ...], told: str) -> None:
    with pytest.raises((InputError, NotFound), match=told):
        CliRunner().invoke(build(["advise"]), ["advise", MODEL, *words], catch_exceptions=False)
