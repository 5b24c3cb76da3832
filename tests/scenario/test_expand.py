"""Scenario → trials: order, seeds, identity, and the server's command line."""

from __future__ import annotations

from harness.scenario import Scenario, expand, launch_groups, server_command_flags
from harness.scenario.schema import stored_settings


def scenario(**changes: object) -> Scenario:
    values: dict[str, object] = {
        "schema": 1,
        "name": "demo",
        "profile": "cpu",
        "model": "m",
        "baseline": "a",
        "server": {"max_model_len": 100},
        "env": {},
        "variants": {"a": {"kv_cache_dtype": "auto"}, "b": {"kv_cache_dtype": "fp8"}},
        "workloads": [
            {"context_tokens": 10, "output_tokens": 2, "num_prompts": 3, "concurrency": 1},
            {"context_tokens": 20, "output_tokens": 2, "num_prompts": 3, "concurrency": 1},
        ],
        "repeats": 3,
    }
    return Scenario.model_validate({**values, **changes})


def test_repeats_are_interleaved_and_each_is_a_launch_of_its_own() -> None:
    groups = launch_groups(expand(scenario()))
    assert [group[0].variant for group in groups] == ["a", "b", "b", "a", "a", "b"]
    assert all(len(group) == 2 for group in groups)


def test_workloads_are_played_in_reverse_in_odd_repeats() -> None:
    groups = launch_groups(expand(scenario()))
    lengths = [[trial.workload.context_tokens for trial in group] for group in groups]
    assert lengths == [[10, 20], [10, 20], [20, 10], [20, 10], [10, 20], [10, 20]]


def test_variants_get_the_same_load_and_repeats_another() -> None:
    trials = expand(scenario())
    seeds = {(t.variant, t.workload.context_tokens, t.repeat): t.seed for t in trials}
    assert seeds["a", 10, 0] == seeds["b", 10, 0]
    assert len({seed for key, seed in seeds.items() if key[0] == "a"}) == 6


def test_ids_are_unique_and_change_with_what_is_run() -> None:
    trials = expand(scenario())
    assert len({trial.trial_id for trial in trials}) == len(trials)
    other = expand(scenario(server={"max_model_len": 101}))
    assert not {trial.trial_id for trial in trials} & {trial.trial_id for trial in other}
    renamed = expand(scenario(question="What else?"))
    assert [t.trial_id for t in trials] == [t.trial_id for t in renamed]


def test_flags_become_the_command_line_mechanically() -> None:
    flags = {
        "kv_cache_dtype": "fp8",
        "enable_prefix_caching": False,
        "enforce_eager": True,
        "max_model_len": 100,
        "gpu_memory_utilization": 0.9,
        "hf_overrides": {"num_key_value_heads": 1},
        "middleware": ["x", "y"],
        "quantization": None,
    }
    assert server_command_flags(flags) == (
        "--kv-cache-dtype",
        "fp8",
        "--no-enable-prefix-caching",
        "--enforce-eager",
        "--max-model-len",
        "100",
        "--gpu-memory-utilization",
        "0.9",
        "--hf-overrides",
        '{"num_key_value_heads": 1}',
        "--middleware",
        "x",
        "y",
    )


def test_a_variant_can_take_back_what_the_server_sets() -> None:
    trials = expand(scenario(variants={"a": {"max_model_len": None}, "b": {}}))
    assert server_command_flags(trials[0].flags) == ()


def test_a_variant_s_settings_lie_over_those_of_all_and_are_read_back_from_a_record() -> None:
    made = scenario(
        server={"max_model_len": 100, "dtype": "auto"},
        env={"A": "1", "B": "1"},
        variants={"a": {}, "b": {"dtype": "half", "env": {"B": "2"}}},
    )
    assert made.flags_of("b") == {"max_model_len": 100, "dtype": "half"}
    assert made.env_of("b") == {"A": "1", "B": "2"}
    assert (made.flags_of("a"), made.env_of("a")) == (made.server, made.env)
    stored = made.model_dump(mode="json", by_alias=True)
    for name in made.variants:
        assert stored_settings(stored, name) == (made.flags_of(name), made.env_of(name))
    trial = next(trial for trial in expand(made) if trial.variant == "b")
    assert (trial.flags, trial.env) == (made.flags_of("b"), made.env_of("b"))


def test_a_record_that_was_edited_sets_nothing_where_it_holds_no_table() -> None:
    stored = {"server": None, "env": [1], "variants": {"a": {"flags": 3, "env": {"B": 2}}}}
    assert stored_settings(stored, "a") == ({}, {"B": "2"})
    assert stored_settings({}, "a") == ({}, {})
