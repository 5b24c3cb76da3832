"""Reasons, stages and choices, read from logs of the pinned engine."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.engines import server_log

LOGS = Path(__file__).resolve().parents[1] / "data" / "server_logs"


@pytest.mark.parametrize(
    ("name", "kind", "words"),
    [
        ("unknown_flag", "flag", "--kv-cache-dtypo"),
        ("illegal_value", "flag", "--kv-cache-dtype"),
        ("model_not_found", "model", "hub can't be reached"),
        ("too_small", "memory", "too small for one request"),
        ("too_large", "memory", "other processes hold memory"),
        ("unsupported", "unsupported", "does not take"),
        ("offload_on_cpu", "unsupported", "does not take"),
    ],
)
def test_a_real_failure_is_sorted_and_explained(name: str, kind: str, words: str) -> None:
    log = (LOGS / f"{name}.log").read_text(encoding="utf-8")
    failure = server_log.explain_failure(log, 1)
    assert failure.kind == kind
    assert words in failure.reason
    assert failure.next_move
    assert failure.evidence in log


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("OSError: You are trying to access a gated repo.", "gated"),
        (
            "OSError: nobody/nothing is not a local folder and is not a valid model identifier",
            "model",
        ),
        ("OSError: [Errno 98] Address already in use", "port"),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB", "memory"),
        (
            "ValueError: Free memory on device cuda:0 (1/80 GiB) is less than desired GPU memory",
            "memory",
        ),
        ("ValueError: fp8 kv cache is not supported on this device", "unsupported"),
        ("/usr/bin/python: No module named 'vllm'", "engine"),
        ("RuntimeError: Failed to infer device type, please set", "engine"),
    ],
)
def test_messages_of_other_devices_are_known(line: str, kind: str) -> None:
    assert server_log.explain_failure(f"noise\n{line}\n", 1).kind == kind


def test_an_unknown_failure_quotes_the_last_error() -> None:
    log = "INFO fine\nKeyError: 'rope'\nINFO bye\n"
    failure = server_log.explain_failure(log, 1)
    assert failure.kind == "unknown"
    assert failure.reason == "KeyError: 'rope'"
    assert "INFO bye" in failure.evidence


def test_an_empty_log_and_a_signal_are_told() -> None:
    assert "without saying why" in server_log.explain_failure("", 1).reason
    killed = server_log.explain_failure("INFO fine\n", -9)
    assert killed.kind == "killed"
    assert "signal 9" in killed.reason


def test_the_stage_is_the_latest_one_reached() -> None:
    assert server_log.stage("") == "importing vLLM"
    log = "Initializing a V1 LLM engine (v0.32.0)\nStarting to load model x\n"
    assert server_log.stage(log) == server_log.LOADING
    eager = log + "Enforce eager set, disabling torch.compile, CUDAGraphs\n"
    assert server_log.stage(eager) == server_log.LOADING
    assert server_log.stage(log + "GPU KV cache size: 1 tokens\n") == "KV pool allocated"


def test_the_backend_is_read_where_the_log_names_it() -> None:
    cuda = "INFO [cuda.py:507] Using FLASH_ATTN attention backend out of potential backends: ['x']"
    assert server_log.attention_backend(cuda) == "FLASH_ATTN"
    assert server_log.attention_backend("Using AttentionBackendEnum.FLASHINFER backend.") == (
        "FLASHINFER"
    )
    assert server_log.attention_backend("INFO nothing here") is None


def test_cores_are_read_from_the_cpu_build() -> None:
    log = "\tlocal_rank=0, core ids=[0, 2]\n\tlocal_rank=1, core ids=[4]\n\treserved_cpus=[1, 3]"
    assert server_log.cpu_cores(log) == ((0, 2, 4), (1, 3))
    assert server_log.cpu_cores("nothing") is None


def test_lines_lose_their_prefix_and_warnings_are_told_once() -> None:
    line = (
        "(EngineCore pid=7) INFO 11-29 16:43:17 [kv_cache_utils.py:2327] CPU KV cache size: 5,120 "
        "tokens, Maximum concurrency for 1,024 tokens per request: 5.00x"
    )
    assert server_log.kv_lines(line)[0].startswith("CPU KV cache size: 5,120")
    prefix = "(Worker pid=1) WARNING 11-29 16:43:17 [x.py:1] "
    scale = prefix + "Using KV cache scaling factor 1.0 for fp8_e4m3."
    assert server_log.warnings(f"{scale}\n{scale}\n") == (
        "Using KV cache scaling factor 1.0 for fp8_e4m3.",
    )
    assert server_log.warnings("WARNING 11-29 [x] Found ulimit of 20000\n") == ()
