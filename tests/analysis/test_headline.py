from dataclasses import replace

from harness.analysis.compare import analyse
from harness.scenario.schema import workload_label
from tests.records import KV_BOUND, bench

ANALYSIS = analyse(*bench())


def finding(metric, workload=None):
    found = [
        one
        for one in ANALYSIS.headline.findings
        if one.metric == metric and (workload is None or one.workload_label == workload)
    ]
    assert len(found) == 1
    return found[0]


def test_the_pool_comes_first_and_once_whatever_the_number_of_workloads():
    metrics = [one.metric for one in ANALYSIS.headline.findings]
    assert metrics[:2] == ["kv.kv_cache_tokens", "kv.kv_bytes_per_token"]
    capacity = finding("kv.kv_cache_tokens")
    assert (capacity.baseline_value, capacity.variant_value) == (5120, 10240)
    assert capacity.workload_label is None


def test_what_the_pool_bought_is_told_for_each_workload_with_its_doubts():
    bought = finding("output_throughput", workload_label(KV_BOUND))
    assert bought.effect == "higher"
    assert bought.improves is True
    assert bought.noise.launches == 3
    # the baseline preempted: which is why the variant gains
    assert bought.verdict == "suspect"
    assert "preemptions" in bought.codes


def test_workloads_that_ran_out_of_blocks_are_named():
    assert ANALYSIS.headline.pool_limited_workloads == (workload_label(KV_BOUND),)


def test_a_queue_before_a_full_pool_is_a_lack_of_blocks_without_any_preemption():
    record, trials = bench(1)
    samples = {
        "full": {"kv_cache_usage": 0.95, "requests_waiting": 3.0, "preemptions_total": 0.0},
        "empty": {"kv_cache_usage": 0.30, "requests_waiting": 3.0, "preemptions_total": 0.0},
    }
    for name, values in samples.items():
        changed = [
            replace(t, engine_samples=tuple(replace(s, **values) for s in t.engine_samples))
            for t in trials
        ]
        limited = analyse(record, changed).headline.pool_limited_workloads
        assert bool(limited) is (name == "full")


def test_the_question_and_the_counts_of_trials_are_told():
    headline = ANALYSIS.headline
    assert headline.question.startswith("Does an FP8 KV cache pay")
    assert (headline.baseline, headline.trials_sealed) == ("fp16", 12)
