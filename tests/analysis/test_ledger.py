import pytest

from harness.analysis.ledger import PredictedMemory, gpus, ledger
from harness.analysis.metrics import summarize
from harness.record import GrantedKv, ProcessSample
from tests.analysis.build import gpu, request, trial, with_run

GIB = 1 << 30
LOG = (
    "Model loading took 15.0 GiB memory and 3.2 seconds",
    (
        "Actual usage is 15.5 GiB for consumed memory (weights + non-torch), 1.5 GiB for peak "
        "activation, and 0.5 GiB for CUDAGraph memory."
    ),
)


def made(predicted=None, *, gpu_samples=(), process_samples=(), **changes):
    record = trial(request(), gpu_samples=gpu_samples, process_samples=process_samples)
    record = with_run(record, **{"server_flags": {}, "granted": GrantedKv(), **changes})
    return ledger(record, summarize(record), predicted or PredictedMemory())


def on_gpu(loaded_gib, **changes):
    return made(
        log_kv_lines=LOG,
        granted=GrantedKv(kv_cache_memory_bytes=60 * GIB),
        device_used_before_bytes=GIB,
        device_used_loaded_bytes=round(loaded_gib * GIB),
        gpu_samples=(gpu(5.0, used_bytes=79 * GIB),),
        **changes,
    )


def test_a_ledger_that_closes_is_valid():
    # 15 weights + 60 pool + 1.5 activation + (15.5 − 15) other = 77; seen 78.5 − 1 before = 77.5
    found = on_gpu(78.5)
    assert found.meter == "nvml"
    assert [line.granted_bytes / GIB for line in found.lines] == [15.0, 60.0, 1.5, 0.5]
    assert found.explained_bytes == 77 * GIB
    assert found.remainder_bytes == GIB // 2
    assert found.remainder_fraction == pytest.approx(0.5 / 77.5)
    assert (found.verdict.verdict, found.verdict.code) == ("valid", "ledger_closes")
    assert found.peak_bytes == 79 * GIB


@pytest.mark.parametrize("loaded_gib", [85.0, 70.0])
def test_a_remainder_above_five_per_cent_either_way_is_suspect(loaded_gib):
    # 84 − 77 = 7 (8.3 %); 69 − 77 = −8 (−11.6 %)
    found = on_gpu(loaded_gib)
    assert (found.verdict.verdict, found.verdict.code) == ("suspect", "ledger_open")
    assert "unexplained" in found.verdict.reason


def test_what_the_engine_does_not_say_is_taken_as_predicted():
    found = made(
        PredictedMemory(weights_bytes=8 * GIB, kv_pool_bytes=2 * GIB),
        device_used_before_bytes=0,
        device_used_loaded_bytes=10 * GIB,
    )
    assert found.explained_bytes == 10 * GIB
    assert found.remainder_bytes == 0
    assert found.verdict.verdict == "valid"


def test_lines_that_nobody_states_are_named():
    found = made(
        PredictedMemory(weights_bytes=GIB),
        rss_loaded_bytes=3 * GIB,
        process_samples=(ProcessSample(5.0, 3 * GIB, 3),),
    )
    assert found.meter == "rss"
    assert (found.before_bytes, found.peak_bytes) == (0, 3 * GIB)
    assert found.verdict.code == "ledger_open"
    assert "nobody states kv_pool, activation_and_graphs, other" in found.verdict.reason


def test_memory_that_was_not_seen_leaves_the_remainder_unknown():
    found = made(PredictedMemory(weights_bytes=GIB), device_used_loaded_bytes=2 * GIB)
    assert (found.remainder_bytes, found.remainder_fraction) == (None, None)
    assert (found.verdict.verdict, found.verdict.code) == ("suspect", "ledger_unknown")


def test_log_figures_are_per_gpu_and_the_meter_adds_all_of_them_up():
    found = on_gpu(155.0, server_flags={"tensor_parallel_size": 2})
    assert found.explained_bytes == 2 * 77 * GIB
    assert found.verdict.verdict == "valid"


@pytest.mark.parametrize(
    ("flags", "count"),
    [
        ({}, 1),
        ({"tensor_parallel_size": 4, "pipeline_parallel_size": 2}, 8),
        ({"tensor_parallel_size": "x"}, 1),
    ],
)
def test_a_server_spreads_over_tensor_times_pipeline_gpus(flags, count):
    assert gpus(flags) == count


def test_captured_graphs_stand_in_where_the_log_has_no_activation():
    found = made(log_kv_lines=("Graph capturing finished in 21 secs, took 0.50 GiB",))
    assert found.lines[2].granted_bytes == GIB // 2


def test_a_server_that_kvbench_did_not_launch_has_no_ledger():
    assert made(launched=False) is None
