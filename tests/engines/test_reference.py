from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from harness.clock import Clock
from harness.engines.reference import Generation, ReferenceEngine, ReferenceSpec
from harness.errors import EngineMissing, ServerDied, ServerStartError
from harness.record import PlannedRequest
from tests.engines import tiny_llama
from tests.processes import gone, running

PROMPT = tuple(range(3, 43))
OUTPUT = 24


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama.write(tmp_path_factory.mktemp("tiny-llama"))


def spec(model: Path, cache: str = "growing", **changes: object) -> ReferenceSpec:
    base = ReferenceSpec(model=str(model), offline=True, threads=1)
    return replace(base, cache=cache, **changes)  # type: ignore[arg-type]


@dataclass
class Played:
    """What three children, a cache each, answered; how two of them ended, and whether they did."""

    generations: dict[str, Generation] = field(default_factory=dict)
    endings: dict[str, str] = field(default_factory=dict)
    left: dict[str, bool] = field(default_factory=dict)


WAYS: tuple[tuple[str, dict[str, object]], ...] = (
    ("none", {}),
    ("growing", {}),
    ("static", {"max_cache_len": 200}),
)


@pytest.fixture(scope="module")
def played(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Played:
    """Each child takes seconds to start, so what ends one comes last in the life of another."""
    logs = tmp_path_factory.mktemp("logs")
    seen = Played()
    for cache, changes in WAYS:
        engine = ReferenceEngine.launch(
            spec(model, cache, **changes), logs / f"{cache}.log", timeout_s=120
        )
        try:
            play(engine, cache, seen)
        finally:
            engine.stop()
    return seen


def play(engine: ReferenceEngine, cache: str, seen: Played) -> None:
    request = PlannedRequest(0, "measured", PROMPT, OUTPUT)
    seen.generations[cache] = engine.generate(request, Clock(), timeout_s=60)
    if cache == "static":
        long = PlannedRequest(1, "measured", PROMPT * 6, 4)
        seen.generations["240 tokens in 200"] = engine.generate(long, Clock(), timeout_s=60)
        short = PlannedRequest(2, "measured", (1, 2), 4)
        seen.generations["after it"] = engine.generate(short, Clock(), timeout_s=60)
        return
    if cache == "none":
        # Each token costs another pass over all before it: far longer than this for 450.
        ending = died(engine, 450, timeout_s=0.05)
    else:
        ending = died(engine, 400, timeout_s=60, on_token=killing(engine.pid))
    seen.endings[cache], seen.left[cache] = ending, running(engine.pid)


def killing(pid: int) -> Callable[[int], None]:
    def kill(tokens: int) -> None:
        if tokens == 2:
            os.kill(pid, signal.SIGKILL)

    return kill


def died(
    engine: ReferenceEngine,
    tokens: int,
    *,
    timeout_s: float,
    on_token: Callable[[int], None] = lambda _tokens: None,
) -> str:
    """What is said of a child that ends in the middle of a request, or "" if it does not.

    A child that is faster than this process has written every token before it is killed. Then the
    next request finds it gone.
    """
    try:
        request = PlannedRequest(8, "measured", PROMPT, tokens)
        engine.generate(request, Clock(), timeout_s=timeout_s, on_token=on_token)
        engine.generate(replace(request, index=9), Clock(), timeout_s=timeout_s)
    except ServerDied as error:
        return str(error)
    return ""


@pytest.fixture(scope="module")
def generations(played: Played) -> dict[str, Generation]:
    return played.generations


def test_all_three_ways_to_keep_keys_and_values_give_the_same_tokens(
    generations: dict[str, Generation],
) -> None:
    ids = {cache: generation.token_ids for cache, generation in generations.items()}
    assert ids["none"] == ids["growing"] == ids["static"]
    assert len(set(ids["none"])) > 3, "a model that repeats one token would prove nothing"


def test_the_tokens_are_those_of_the_librarys_own_generate(
    generations: dict[str, Generation], model: Path
) -> None:
    import torch
    from transformers import LlamaForCausalLM

    own = LlamaForCausalLM.from_pretrained(model, dtype="auto").generate(
        torch.tensor([PROMPT]),
        max_new_tokens=OUTPUT,
        min_new_tokens=OUTPUT,
        do_sample=False,
        pad_token_id=0,
    )
    assert own[0, len(PROMPT) :].tolist() == list(generations["growing"].token_ids)


def test_a_growing_cache_holds_exactly_the_tokens_seen(generations: dict[str, Generation]) -> None:
    samples = generations["growing"].cache
    # Read at the first token, every 16th, and the last: sequences of 40, 56 and 63 tokens.
    assert [s.sequence_tokens for s in samples] == [40, 56, 63]
    assert [s.allocated_bytes for s in samples] == [
        n * tiny_llama.FP32_BYTES_PER_TOKEN for n in (40, 56, 63)
    ]


def test_a_static_cache_holds_its_whole_reservation_from_the_first_step(
    generations: dict[str, Generation],
) -> None:
    held = {s.allocated_bytes for s in generations["static"].cache}
    assert held == {200 * tiny_llama.FP32_BYTES_PER_TOKEN}


def test_without_a_cache_nothing_is_kept(generations: dict[str, Generation]) -> None:
    assert {s.allocated_bytes for s in generations["none"].cache} == {0}


def test_every_token_has_its_time_in_order_after_the_request_was_sent(
    generations: dict[str, Generation],
) -> None:
    for cache in ("none", "growing", "static"):
        record = generations[cache].record
        assert record.prompt_tokens == len(PROMPT)
        assert record.output_tokens == OUTPUT == len(record.chunk_times_s)
        assert record.finished_s is not None
        times = [record.sent_s, *record.chunk_times_s, record.finished_s]
        assert times == sorted(times)


def test_a_request_that_the_model_refuses_is_a_record_with_its_error_and_the_next_is_served(
    generations: dict[str, Generation],
) -> None:
    refused, served = generations["240 tokens in 200"].record, generations["after it"].record
    assert refused.error is not None
    assert refused.output_tokens is None
    assert served.error is None
    assert served.output_tokens == 4


def test_a_model_that_is_not_there_is_told_with_the_end_of_the_log(tmp_path: Path) -> None:
    with pytest.raises(ServerStartError) as caught:
        ReferenceEngine.launch(spec(tmp_path / "nothing"), tmp_path / "log", timeout_s=120)
    assert "nothing" in str(caught.value)


def test_a_python_without_transformers_is_an_engine_that_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S -E "$@"\n')
    bare.chmod(0o755)
    monkeypatch.setenv("KVBENCH_REFERENCE_PYTHON", str(bare))
    with pytest.raises(EngineMissing, match="No module named"):
        ReferenceEngine.launch(spec(tmp_path), tmp_path / "log", timeout_s=60)


def test_a_child_that_is_killed_in_the_middle_of_a_request_is_told(played: Played) -> None:
    assert "exit code -9" in played.endings["growing"]


def test_a_request_that_takes_too_long_ends_the_child(played: Played) -> None:
    assert "in time" in played.endings["none"]
    assert played.left["none"] is False


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's parent-death signal is Linux's")
def test_the_child_does_not_outlive_a_harness_that_is_killed(model: Path, tmp_path: Path) -> None:
    program = textwrap.dedent(f"""
        import time
        from pathlib import Path
        from harness.engines.reference import ReferenceEngine, ReferenceSpec
        spec = ReferenceSpec(model={str(model)!r}, offline=True, threads=1)
        engine = ReferenceEngine.launch(spec, Path({str(tmp_path / "log")!r}), timeout_s=120)
        print(engine.pid, flush=True)
        time.sleep(60)
    """)
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True
    ) as harness:
        assert harness.stdout is not None
        pid = int(harness.stdout.readline())
        harness.kill()
    assert gone(pid)
