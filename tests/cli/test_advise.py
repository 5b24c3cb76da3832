from __future__ import annotations

import json

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
    assert "recommended: sliding window of 4,096" in text
    assert "measured;" not in text.replace("nothing was measured;", "")


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
