from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from harness.analysis.run_differences import (
    Difference,
    differences,
    planned_workloads,
    workload_key,
)
from harness.record import GpuFacts, TrialRecord
from tests.analysis import runs
from tests.analysis.runs import Stored

A = runs.run()


def differing(*stored: Stored) -> dict[str, tuple[Any, ...]]:
    return {one.key: one.values for one in differences(stored)}


def refused(*stored: Stored) -> set[str]:
    return {one.key for one in differences(stored) if one.refused}


def with_server(stored: Stored, variant: str | None = None, **facts: Any) -> Stored:
    def change(trial: TrialRecord) -> TrialRecord:
        if trial.run.server is None or variant not in (None, trial.run.trial.variant):
            return trial
        server = replace(trial.run.server, **facts)
        return runs.with_run(trial, lambda run: replace(run, server=server))

    return runs.with_trials(stored, change)


def test_a_run_differs_in_nothing_from_itself_or_from_one_taken_later() -> None:
    assert differences([A, A]) == ()
    assert differences([A, runs.again(A)]) == ()


@pytest.mark.parametrize(
    ("key", "facts"),
    [
        ("git_revision", {"git_revision": "f" * 40}),
        ("git_dirty", {"git_dirty": True}),
        ("kvbench_version", {"kvbench_version": "9.9"}),
        ("cpu", {"cpu": "Another CPU"}),
        ("cpu_cores", {"cpu_cores": 64}),
        ("memory_bytes", {"memory_bytes": 1}),
        ("platform", {"platform": "Linux-9"}),
        ("python", {"python": "3.12.0"}),
        ("packages.torch", {"packages": {**A[0].environment.packages, "torch": "2.14.0"}}),
    ],
)
def test_what_differs_in_the_machine_is_named_and_not_refused(
    key: str, facts: dict[str, Any]
) -> None:
    found = differences([A, runs.on_machine(A, **facts)])
    assert [(one.key, one.refused) for one in found] == [(key, False)]


def test_another_gpu_or_driver_is_named() -> None:
    gpu = GpuFacts(0, "NVIDIA H200", 141 * 10**9, "570.00", power_limit_w=700.0, mig=False)
    one = runs.on_machine(A, gpus=(gpu,))
    same_card = runs.on_machine(A, gpus=(replace(gpu, driver="580.10"),))
    other_card = runs.on_machine(A, gpus=(replace(gpu, name="NVIDIA H100"),))
    assert differing(one, same_card) == {"gpu_driver": ("570.00", "580.10")}
    assert differing(one, other_card) == {"gpu": ("NVIDIA H200", "NVIDIA H100")}


@pytest.mark.parametrize(
    ("key", "other"),
    [
        ("profile", runs.on_machine(A, profile="cuda")),
        ("model", runs.in_scenario(A, model="another/model")),
        ("engine", runs.in_scenario(A, engine="reference")),
        ("workloads", runs.in_scenario(A, workloads=[runs.TIGHT])),
    ],
)
def test_unlike_profiles_models_engines_and_loads_are_refused(key: str, other: Stored) -> None:
    assert key in refused(A, other)


def test_a_model_that_one_variant_names_makes_runs_unlike() -> None:
    variants = {"fp16": {"flags": {}}, "fp8": {"flags": {}, "model": "another/model"}}
    found = differing(A, runs.in_scenario(A, variants=variants))
    assert found["model"] == ("smollm2-135m-instruct", "smollm2-135m-instruct, another/model")


def test_a_flag_is_named_for_its_variant_and_once_where_all_differ_alike() -> None:
    one = {"fp16": {"flags": {"dtype": "half"}}, "fp8": {"flags": {"kv_cache_dtype": "fp8"}}}
    assert differing(A, runs.in_scenario(A, variants=one)) == {
        "fp16: flags.kv_cache_dtype": ("auto", None),
        "fp16: flags.dtype": (None, "half"),
    }
    server = {**A[0].scenario["server"], "max_num_seqs": 64}
    assert differing(A, runs.in_scenario(A, server=server)) == {"flags.max_num_seqs": (None, 64)}


def test_the_engine_s_version_backend_and_environment_are_named() -> None:
    assert differing(A, with_server(A, engine_version="0.33.0")) == {
        "engine_version": ("0.32.0", "0.33.0")
    }
    assert differing(A, with_server(A, "fp8", attention_backend="FLASHINFER")) == {
        "fp8: attention_backend": ("CPU_ATTN", "FLASHINFER")
    }
    assert differing(
        A, with_server(A, env={"VLLM_NO_USAGE_STATS": "1", "OMP_NUM_THREADS": "2"})
    ) == {"env.OMP_NUM_THREADS": (None, "2")}


def test_a_run_that_met_no_server_yet_differs_in_nothing_that_servers_report() -> None:
    unborn = runs.with_trials(A, lambda trial: None)
    assert differing(A, unborn) == {}


def test_a_key_that_an_older_kvbench_did_not_write_is_no_difference() -> None:
    newer = runs.in_scenario(A, claims=[], attach=None, quality=None, env={})
    assert differing(A, newer) == {}
    loads = [{**runs.SMALL, "turns": None, "length_mix": None, "burstiness": 1}]
    assert differing(A, runs.in_scenario(A, workloads=loads)) == {}


def test_a_scenario_key_is_named_by_its_path() -> None:
    other = runs.in_scenario(A, seed=7, kv_budget={"mode": "engine", "value_bytes": 1})
    assert differing(A, other) == {
        "scenario.seed": (0, 7),
        "scenario.kv_budget.mode": ("equal_bytes", "engine"),
        "scenario.kv_budget.value_bytes": (A[0].scenario["kv_budget"]["value_bytes"], 1),
    }


def test_what_is_refused_comes_first_and_holds_a_value_for_every_run() -> None:
    later = runs.on_machine(runs.in_scenario(A, model="m"), cpu="x")
    found = differences([A, A, later])
    assert found[0] == Difference(
        "model", ("smollm2-135m-instruct", "smollm2-135m-instruct", "m"), refused=True
    )
    assert found[1].values == (A[0].environment.cpu, A[0].environment.cpu, "x")


def test_a_load_is_known_by_what_is_sent_not_by_its_label() -> None:
    assert workload_key({**runs.SMALL, "label": "x"}) == workload_key(runs.SMALL)
    assert workload_key({**runs.SMALL, "num_prompts": 9}) != workload_key(runs.SMALL)
    assert list(planned_workloads(A[0]).values()) == [runs.SMALL]
