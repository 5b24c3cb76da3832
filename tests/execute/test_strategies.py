"""What variants ask for beyond flags: emulation, what can't be run as asked, and whole benches."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest

from harness import store
from harness.errors import ScenarioError
from harness.execute.estimate import ASSUMED, assumed_load_s
from harness.execute.local import run_scenario
from harness.execute.outline import outline
from harness.execute.progress import Silent
from harness.execute.strategies import check_heads, emulation_flags, refusal
from harness.record import BenchRecord, TrialRecord
from harness.scenario import Scenario, Trial, expand, load_scenario
from harness.specs.model import model_spec
from tests.records import SMOLLM2_CONFIG

ROOT = Path(__file__).resolve().parents[2]


def scenario(name: str, *overrides: str) -> Scenario:
    return load_scenario(ROOT / "scenarios" / f"{name}.yaml", "cpu", overrides=overrides)


def trial_of(name: str, variant: str, *overrides: str) -> Trial:
    return next(t for t in expand(scenario(name, *overrides)) if t.variant == variant)


def test_preallocation_lets_in_what_whole_length_reservations_would() -> None:
    trial = trial_of("paged_vs_preallocated", "preallocated")
    model = model_spec(SMOLLM2_CONFIG, name="smollm2")
    # 235,929,600 B / (23,040 B × 128) = 80 blocks = 10,240 tokens; / 2,048 = 5 reservations
    flags = emulation_flags(trial, {}, model, 235_929_600, "cpu")
    assert flags == {"max_num_seqs": 5}
    # 4.5 of them are 4; less than one is still one
    assert emulation_flags(trial, {}, model, 212_000_000, "cpu") == {"max_num_seqs": 4}
    assert emulation_flags(trial, {}, model, 23_040 * 128 * 17, "cpu") == {"max_num_seqs": 1}
    paged = trial_of("paged_vs_preallocated", "paged")
    assert emulation_flags(paged, {}, model, 235_929_600, "cpu") == {}


def test_an_emulation_without_a_known_pool_is_refused() -> None:
    trial = trial_of("paged_vs_preallocated", "preallocated")
    model = model_spec(SMOLLM2_CONFIG, name="smollm2")
    for spec, pool in ((model, None), (None, 1 << 30)):
        with pytest.raises(ScenarioError, match="not known before the start"):
            emulation_flags(trial, {}, spec, pool, "cpu")


def test_the_cap_is_on_the_planned_command_line_of_the_emulating_variant_alone() -> None:
    commands = {
        item.trial.variant: item.command for item in outline(scenario("paged_vs_preallocated"))
    }
    caps = {
        name: command[command.index("--max-num-seqs") + 1] for name, command in commands.items()
    }
    assert caps == {"preallocated": "5", "paged": "64"}


@pytest.mark.parametrize("dtype", ["nvfp4", "int8_per_token_head", "turboquant_4bit_nc"])
def test_a_dtype_that_the_cpu_backend_only_seems_to_take_is_refused_there(dtype: str) -> None:
    trial = trial_of("kv_dtypes", dtype)
    assert "lists auto, fp8, fp8_e4m3, fp8_e5m2" in (refusal(trial, "cpu") or "")
    assert refusal(trial, "cuda") is None


def test_the_scenario_names_every_kv_dtype_that_the_installed_engine_knows() -> None:
    # Found, not imported: that would load torch.
    engine = importlib.util.find_spec("vllm")
    assert engine is not None
    assert engine.origin is not None
    source = (Path(engine.origin).parent / "config" / "cache.py").read_text(encoding="utf-8")
    listed = re.search(r"^CacheDType = Literal\[(.*?)^\]", source, re.DOTALL | re.MULTILINE)
    assert listed is not None
    known = set(re.findall(r'"([^"]+)"', listed[1]))
    cuda = load_scenario(ROOT / "scenarios" / "kv_dtypes.yaml", "cuda")
    asked = {str(variant.flags["kv_cache_dtype"]) for variant in cuda.variants.values()}
    # `auto` is the model's own 16-bit type.
    assert known - asked == {"float16", "bfloat16"}


@pytest.mark.parametrize("variant", ["fp8_inc", "fp8_ds_mla", "ultraquant_4bit"])
def test_a_plan_says_what_will_be_skipped_also_where_theory_says_nothing(variant: str) -> None:
    planned = next(p for p in outline(scenario("kv_dtypes")) if p.trial.variant == variant)
    assert planned.capacity is None
    assert "modelled" in (planned.capacity_reason or "")
    assert "will be skipped: the CPU backend of vLLM lists" in (planned.capacity_reason or "")


@pytest.mark.parametrize("dtype", ["auto", "fp8_e4m3", "fp8_e5m2"])
def test_a_dtype_that_the_cpu_backend_takes_is_not_refused(dtype: str) -> None:
    assert refusal(trial_of("kv_dtypes", dtype), "cpu") is None


def test_kv_heads_that_do_not_divide_the_query_heads_are_refused_with_those_that_do() -> None:
    trial = trial_of("attention_heads", "gqa", "variants.gqa.hf_overrides={num_key_value_heads: 4}")
    with pytest.raises(ScenarioError, match="4 KV heads do not divide the model's 9") as caught:
        check_heads(trial, {**SMOLLM2_CONFIG, "num_key_value_heads": 4})
    assert caught.value.legal == ("1", "3", "9")
    with pytest.raises(ScenarioError):
        outline(scenario("attention_heads", "variants.gqa.hf_overrides={num_key_value_heads: 4}"))


def test_a_model_that_states_such_heads_itself_is_the_engines_business() -> None:
    trial = trial_of("kv_dtypes", "auto")
    check_heads(trial, {**SMOLLM2_CONFIG, "num_key_value_heads": 4})


def test_loads_that_differ_are_estimated_by_their_own_lengths() -> None:
    rates = ASSUMED["cpu"]
    # Three turns of 512, 1,024, 1,536 tokens: 2/3 of the longest on average, for 24 + 1 requests;
    # 16 tokens each at 2 streams × 25 tokens/s.
    turns = scenario("cpu_offload").workloads[0]
    assert assumed_load_s(turns, rates) == pytest.approx(25 * 1024 / 600 + 25 * 16 / 50)
    mixed = scenario("paged_vs_preallocated").workloads[0]
    longest = 73 * (1792 / 600 + 192 / 130)
    assert assumed_load_s(mixed, rates) < longest / 3


def bench(tmp_path: Path, wanted: Scenario) -> tuple[BenchRecord, tuple[TrialRecord, ...]]:
    folder = run_scenario(wanted, root=tmp_path, command=["kvbench"], progress=Silent())
    return store.read_bench(folder)


@pytest.fixture
def model(tmp_path: Path) -> str:
    import json

    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(SMOLLM2_CONFIG))
    return f"model={folder}"


def small(**sizes: Any) -> str:
    load = {"output_tokens": 2, "warmup_requests": 1, "concurrency": 2, **sizes}
    return "workloads=" + "[{" + ", ".join(f"{key}: {value}" for key, value in load.items()) + "}]"


@pytest.mark.usefixtures("fake_engine")
def test_a_dtype_refused_here_is_skipped_with_the_reason_and_the_rest_goes_on(
    tmp_path: Path, model: str
) -> None:
    load = small(context_tokens=64, num_prompts=2)
    record, trials = bench(tmp_path, scenario("kv_dtypes", model, load, "repeats=1"))
    by_status: dict[str, set[str]] = {}
    for trial in trials:
        by_status.setdefault(trial.run.status, set()).add(trial.run.trial.variant)
    assert by_status["sealed"] == {"auto", "fp8_e4m3", "fp8_e5m2"}
    assert by_status["skipped"] == set(record.skipped)
    assert len(record.skipped) == 13
    assert "what ran would not be what was asked for" in record.skipped["nvfp4"]


@pytest.mark.usefixtures("fake_engine")
def test_offloading_on_a_cpu_is_skipped_with_the_engines_own_reason(
    tmp_path: Path, model: str
) -> None:
    load = small(context_tokens=96, num_prompts=6, turns=3)
    record, trials = bench(tmp_path, scenario("cpu_offload", model, load))
    assert {t.run.trial.variant: t.run.status for t in trials} == {
        "gpu_only": "sealed",
        "offload": "skipped",
    }
    assert "only supported on CUDA-alike" in record.skipped["offload"]
    played = next(t for t in trials if t.run.status == "sealed")
    lengths = [r.prompt_tokens for r in played.requests if r.phase == "measured"]
    assert sorted(length or 0 for length in lengths) == [32, 32, 64, 64, 96, 96]


@pytest.mark.usefixtures("fake_engine")
def test_an_emulated_trial_is_stamped_and_was_given_its_cap(tmp_path: Path, model: str) -> None:
    load = small(context_tokens=96, num_prompts=4, length_mix="{context_median: 20}")
    _, trials = bench(tmp_path, scenario("paged_vs_preallocated", model, load, "repeats=1"))
    facts = {t.run.trial.variant: t.run.trial for t in trials}
    assert {name: fact.stamp for name, fact in facts.items()} == {
        "preallocated": "emulated",
        "paged": "measured",
    }
    assert facts["preallocated"].server_flags["max_num_seqs"] == 5
    assert facts["paged"].server_flags["max_num_seqs"] == 64


@pytest.mark.usefixtures("fake_engine")
@pytest.mark.parametrize(
    ("pool", "cap"),
    [
        # 235,929,600 B / (23,040 B × 128) = 80 blocks = 10,240 tokens; / 2,048 = 5
        ("server.kv_cache_memory_bytes=235929600", 5),
        # 1 GiB / (23,040 B × 128) = 364 blocks = 46,592 tokens; / 2,048 = 22
        ("env.VLLM_CPU_KVCACHE_SPACE='1'", 22),
    ],
)
def test_a_pool_that_the_engine_is_asked_for_caps_the_bench_as_the_plan_says(
    tmp_path: Path, model: str, pool: str, cap: int
) -> None:
    load = small(context_tokens=96, num_prompts=4, length_mix="{context_median: 20}")
    wanted = scenario("paged_vs_preallocated", model, load, "repeats=1", "kv_budget=engine", pool)
    planned = next(p.command for p in outline(wanted) if p.trial.variant == "preallocated")
    assert planned[planned.index("--max-num-seqs") + 1] == str(cap)
    _, trials = bench(tmp_path, wanted)
    facts = {t.run.trial.variant: t.run.trial for t in trials}
    assert {t.run.status for t in trials} == {"sealed"}
    assert facts["preallocated"].server_flags["max_num_seqs"] == cap


@pytest.mark.usefixtures("fake_engine")
def test_overridden_heads_are_granted_as_predicted(tmp_path: Path, model: str) -> None:
    load = small(context_tokens=64, num_prompts=2)
    _, trials = bench(tmp_path, scenario("attention_heads", model, load, "repeats=1"))
    granted = {
        t.run.trial.variant: t.run.server.granted.kv_cache_tokens
        for t in trials
        if t.run.server is not None
    }
    # 176,947,200 B / 128 tokens: 20, 60 and 180 blocks of 69,120, 23,040 and 7,680 B per token
    assert granted == {"mha": 2560, "gqa": 7680, "mqa": 23040}
