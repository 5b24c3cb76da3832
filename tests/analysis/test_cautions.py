from dataclasses import replace
from pathlib import Path

import pytest

from harness import store
from harness.analysis.compare import analyse
from harness.record import ProcessSample
from tests.analysis.build import with_run
from tests.records import GPU_MACHINE, bench, failed, half_written
from tests.report.stored import unpacked

RECORD, TRIALS = bench(3, environment=GPU_MACHINE)


def texts(record=RECORD, trials=TRIALS):
    told: dict[str, list[str]] = {}
    for caution in analyse(record, trials).cautions:
        told.setdefault(caution.code, []).append(caution.text)
    return told


def changed(**changes):
    return [with_run(trial, **changes) for trial in TRIALS]


def granted(**changes):
    return [with_run(t, granted=replace(t.run.server.granted, **changes)) for t in TRIALS]


def test_a_clean_run_on_a_gpu_warns_of_quality_and_flat_memory_alone():
    # the played pools have blocks of 128 tokens, which is not what CUDA takes unasked
    asked = [
        with_run(t, server_flags={**t.run.trial.server_flags, "block_size": 128}) for t in TRIALS
    ]
    assert set(texts(trials=asked)) == {"quality_unmeasured", "uncalibrated_scale", "memory_flat"}


def test_a_pool_of_other_blocks_than_predicted_is_told_in_blocks():
    # the same bytes: 40 blocks of 128 tokens, 320 of 16
    told = texts()["theory_disagrees"][0]
    assert told == "fp16: 40 blocks of 128 tokens granted, 320 of 16 predicted"


def test_a_run_without_a_gpu_says_so():
    assert texts(*bench(3))["cpu_profile"][0].startswith("CPU profile: ")


def test_fewer_repeats_than_an_interval_needs_are_told_once():
    (told,) = texts(*bench(2, environment=GPU_MACHINE))["no_interval"]
    assert "a variant has only 2 repeats" in told
    assert "no_interval" not in texts()


def test_failed_and_unfinished_trials_are_told_with_a_reason():
    spoilt = [failed(TRIALS[0], "out of memory"), half_written(TRIALS[1]), *TRIALS[2:-1]]
    told = texts(trials=spoilt)
    assert "out of memory" in told["trials_failed"][0]
    assert told["trials_unfinished"][0].startswith("2 trials")


def test_a_skipped_variant_is_told_with_the_engines_reason():
    record = replace(RECORD, skipped={"nvfp4": "needs compute capability 10.0"})
    assert texts(record)["variant_skipped"] == ["nvfp4 was skipped: needs compute capability 10.0."]


def test_variants_that_one_reason_skips_share_a_caution():
    reasons = {name: f"the engine does not take '{name}'" for name in ("nvfp4", "int8")}
    assert texts(replace(RECORD, skipped=reasons))["variant_skipped"] == [
        "nvfp4 was skipped: the engine does not take 'nvfp4'. So were, likewise, int8."
    ]


def test_benches_beside_this_one_are_told_in_their_number():
    one, two = (
        texts(replace(RECORD, beside=names))["not_alone"][0] for names in (("a",), ("a", "b"))
    )
    assert one.startswith("a was measured on this machine at the same time: the two shared")
    assert two.startswith("a, b were measured on this machine at the same time: all shared")


def test_uncommitted_changes_are_told():
    record = replace(RECORD, environment=replace(GPU_MACHINE, git_dirty=True))
    assert "git_dirty" in texts(record)


def test_random_weights_are_told():
    assert "dummy_weights" in texts(trials=changed(server_flags={"load_format": "dummy"}))


def test_a_variant_that_is_emulated_is_not_passed_off_as_measured():
    assert (
        texts(trials=changed(stamp="emulated"))["not_measured"][0]
        == "fp16 is emulated, not measured"
    )


def test_a_model_without_theory_is_told():
    assert "theory_unknown" in texts(trials=changed(model_config=None))


@pytest.mark.parametrize(("times", "told"), [(14, True), (1, False)])
def test_bytes_per_token_far_above_the_predicted_mean_another_layout(times, told):
    # fourteen times the bytes for the same blocks: what an MLA model stores as full heads
    size = 117_964_800 * times
    trials = [t for t in granted(kv_cache_memory_bytes=size) if t.run.trial.variant == "fp16"]
    blocks = [
        with_run(t, server_flags={**t.run.trial.server_flags, "num_gpu_blocks_override": 40})
        for t in trials
    ]
    assert ("layout_not_as_modelled" in texts(trials=blocks)) is told


def test_launches_that_were_granted_different_pools_are_told_with_the_spread():
    first = with_run(
        TRIALS[0],
        granted=replace(TRIALS[0].run.server.granted, kv_cache_tokens=4992, num_gpu_blocks=39),
        launch=99,
    )
    assert "4,992 to 5,120" in texts(trials=[first, *TRIALS[1:]])["grant_varies"][0]


def test_blocks_longer_than_the_prompts_are_told():
    # 7,808-token blocks of a hybrid model under 512-token prompts
    assert "7,808" in texts(trials=granted(block_size=7808))["block_longer_than_prompt"][0]


def test_memory_that_grows_under_load_is_not_called_flat():
    record, trials = bench(1)
    grown = [
        replace(t, process_samples=(ProcessSample(0.0, 1000, 1), ProcessSample(9.0, 2000, 1)))
        for t in trials
    ]
    assert "memory_flat" not in texts(record, grown)


def test_pools_that_the_engine_picked_are_told():
    record = replace(RECORD, scenario={**RECORD.scenario, "kv_budget": {"mode": "engine"}})
    assert "compare bytes per token first" in texts(record)["budget_of_engine"][0]


def test_capacity_in_requests_is_said_of_layers_that_free_blocks_and_of_no_others(
    tmp_path: Path,
) -> None:
    def of(scenario: str) -> list[str]:
        stored = store.read_bench(unpacked(scenario, tmp_path))
        return texts(*stored).get("capacity_in_requests", [])

    (text,) = of("sliding_window")
    assert "requests that fit × 4,096 tokens" in text
    assert of("fp8_vs_fp16") == []
