from harness.analysis.granted import granted_figures, granted_pool_bytes, read_gib
from harness.record import GrantedKv
from tests.analysis.build import request, trial, with_run


def run(**changes):
    """A run whose server says nothing of its pool but what ``changes`` say."""
    silent = {"granted": GrantedKv(), "server_flags": {}, "env": {}, "log_kv_lines": ()}
    return with_run(trial(request()), **{**silent, **changes}).run


def test_the_engines_own_figure_comes_before_request_and_log():
    said = {
        "granted": GrantedKv(kv_cache_memory_bytes=4),
        "server_flags": {"kv_cache_memory_bytes": 3},
        "log_kv_lines": ("Available KV cache memory: 1.0 GiB",),
    }
    assert granted_pool_bytes(run(**said)) == 4
    assert granted_pool_bytes(run(**{**said, "granted": GrantedKv()})) == 3
    assert granted_pool_bytes(run(env={"VLLM_CPU_KVCACHE_SPACE": "2"})) == 2 << 30
    assert granted_pool_bytes(run(log_kv_lines=said["log_kv_lines"])) == 1 << 30
    assert granted_pool_bytes(run()) is None


def test_without_a_server_nothing_was_granted():
    nothing = with_run(trial(request()), server=None).run
    assert granted_pool_bytes(nothing) is None
    assert granted_figures(nothing).kv_cache_tokens is None


def test_bytes_per_token_are_the_pool_over_all_its_slots():
    # 176,000 B over 11 blocks of 16
    figures = granted_figures(trial(request()).run)
    assert figures.kv_bytes_per_token == 1000.0
    assert (figures.num_blocks, figures.block_size) == (11, 16)


def test_the_last_figure_of_the_log_counts():
    lines = (
        "Model loading took 14.99 GiB memory and 3.2 seconds",
        "Model loading took 15.5 GiB memory and 3.1 seconds",
        "Graph capturing finished in 21 secs, took 0.50 GiB",
        (
            "Actual usage is 16.2 GiB for consumed memory (weights + non-torch), 1.25 GiB for peak "
            "activation, and 0.5 GiB for CUDAGraph memory"
        ),
    )
    assert read_gib(lines, "weights") == round(15.5 * 2**30)
    assert read_gib(lines, "graphs") == 2**29
    assert read_gib(lines, "consumed") == round(16.2 * 2**30)
    assert read_gib(lines, "activation") == round(1.25 * 2**30)
    assert read_gib(lines, "kv_pool") is None
