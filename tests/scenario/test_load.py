"""Files and overrides → a checked scenario; every fault names the place and what is legal."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from harness.errors import ScenarioError
from harness.scenario import Scenario, load_scenario
from harness.scenario.load import slugify

GOOD = """\
schema: 1
name: demo
question: Does it work?
model: some/model
baseline: a
server: {max_model_len: 1024, gpu_memory_utilization: 0.9}
variants:
  a: {kv_cache_dtype: auto}
  b: {kv_cache_dtype: fp8, env: {VLLM_FLAG: 1}}
workloads:
  - {context_tokens: 512, output_tokens: 16, num_prompts: 50, concurrency: [1, 4]}
repeats: 3
profiles:
  cpu:
    model: other/model
    server: {max_model_len: 600}
"""


def load(
    tmp_path: Path, text: str = GOOD, profile: str = "cuda", *overrides: str, **more: str
) -> Scenario:
    path = tmp_path / "demo.yaml"
    path.write_text(text)
    return load_scenario(path, profile, overrides=overrides, **more)


def test_lists_in_a_workload_are_a_matrix(tmp_path: Path) -> None:
    scenario = load(tmp_path)
    assert [w.concurrency for w in scenario.workloads] == [1, 4]
    assert scenario.model == "some/model"
    assert scenario.variants["b"].env == {"VLLM_FLAG": "1"}
    assert scenario.variants["b"].flags == {"kv_cache_dtype": "fp8"}


def test_a_profile_is_laid_over_the_rest_key_by_key(tmp_path: Path) -> None:
    scenario = load(tmp_path, GOOD, "cpu")
    assert scenario.model == "other/model"
    assert scenario.server == {"max_model_len": 600, "gpu_memory_utilization": 0.9}


@pytest.mark.parametrize("before", ["{equal_bytes: 1GiB}", "engine", "equal_tokens"])
def test_the_kv_budget_is_one_choice_that_the_last_word_makes(tmp_path: Path, before: str) -> None:
    text = GOOD + "    kv_budget: {equal_tokens: 5000}\n" + f"kv_budget: {before}\n"
    assert load(tmp_path, text, "cpu").kv_budget.value_tokens == 5000
    set_ = load(tmp_path, text, "cuda", "kv_budget.equal_tokens=7000").kv_budget
    assert (set_.mode, set_.value_tokens, set_.value_bytes) == ("equal_tokens", 7000, None)


def test_overrides_act_on_the_profile_in_force(tmp_path: Path) -> None:
    scenario = load(
        tmp_path,
        GOOD,
        "cpu",
        "repeats=1",
        "workloads.0.concurrency=[2]",
        "server.max_num_seqs=8",
        "variants.b.kv_cache_dtype=fp8_e5m2",
    )
    assert scenario.repeats == 1
    assert [w.concurrency for w in scenario.workloads] == [2]
    assert scenario.server["max_num_seqs"] == 8
    assert scenario.variants["b"].flags["kv_cache_dtype"] == "fp8_e5m2"


def replaced(old: str, new: str) -> str:
    assert old in GOOD
    return GOOD.replace(old, new)


@pytest.mark.parametrize(
    ("text", "message", "where"),
    [
        (replaced("baseline: a", "baseline: c"), "is no variant", "demo.yaml:5 (baseline)"),
        (replaced("repeats: 3", "repeat: 3"), "no key 'repeat'", "demo.yaml:12 (repeat)"),
        (replaced("repeats: 3", "repeats: three"), "whole number", "demo.yaml:12 (repeats)"),
        (replaced("repeats: 3", "repeats: true"), "whole number", "demo.yaml:12 (repeats)"),
        (replaced("repeats: 3", "repeats: 0"), "at least 1", "demo.yaml:12 (repeats)"),
        (replaced("schema: 1", "schema: 2"), "reads schema 1", "demo.yaml:1 (schema)"),
        (replaced("concurrency: [1, 4]", "concurrency: []"), "empty list", "(workloads.0"),
        (replaced("concurrency: [1, 4]", "concurrency: [4, 4]"), "the same", "(workloads.0)"),
        (replaced("concurrency: [1, 4]", "rate: 1"), "no key 'rate'", "(workloads.0.rate)"),
        (
            replaced("concurrency: [1, 4]", "concurrency: 1, request_rate: 2"),
            "exactly one",
            "(workloads.0)",
        ),
        (replaced("concurrency: [1, 4]", "warmup_requests: 1"), "exactly one", "(workloads.0)"),
        (replaced("context_tokens: 512", "context_tokens: 1020"), "does not fit", "(workloads.0)"),
        (replaced("kv_cache_dtype: fp8", "kv-cache-dtype: fp8"), "snake case", "(variants.b"),
        (replaced("VLLM_FLAG: 1", "HF_TOKEN: x"), "secret", "(variants.b"),
        (replaced("VLLM_FLAG: 1", "P: 'http://me:pw@h'"), "secret", "(variants.b"),
        (replaced("gpu_memory_utilization: 0.9", "port: 80"), "free port", "(server"),
        (replaced("repeats: 3", "kv_budget: equal"), "equal_bytes", "(kv_budget"),
        (replaced("repeats: 3", "kv_budget: {equal_bytes: 12 furlongs}"), "memory size", "(kv_b"),
        (replaced("repeats: 3", "slo: {ttft: 1}"), "no key 'ttft'", "(slo.ttft)"),
        (replaced("  cpu:", "  gpu:"), "no key 'gpu'", "(profiles.gpu)"),
        (replaced("model: other/model", "modle: x"), "no key 'modle'", "(profiles.cpu.modle)"),
        (replaced("model: some/model\n", ""), "'model' is missing", "demo.yaml"),
        (replaced("  b:", "  A:"), "share the folder name", "(variants.A"),
        (replaced("kv_cache_dtype: fp8", "kv_cache_memory_bytes: 5"), "kv_budget", "(variants.b"),
    ],
)
def test_a_fault_names_its_place(tmp_path: Path, text: str, message: str, where: str) -> None:
    with pytest.raises(ScenarioError, match=message) as caught:
        load(tmp_path, text)
    assert where in (caught.value.where or "")
    assert caught.value.exit_code == 2


def test_a_fault_in_the_other_profile_is_found_today(tmp_path: Path) -> None:
    text = replaced("server: {max_model_len: 600}", "server: {max_model_len: 500}")
    with pytest.raises(ScenarioError, match="does not fit max_model_len 500"):
        load(tmp_path, text, "cuda")


@pytest.mark.parametrize("asked", ["cuda", "cpu"])
def test_a_fault_that_a_profile_brings_names_it_and_the_key_that_mends_it(
    tmp_path: Path, asked: str
) -> None:
    text = replaced("server: {max_model_len: 600}", "server: {max_model_len: 500}")
    with pytest.raises(ScenarioError) as caught:
        load(tmp_path, text, asked)
    assert caught.value.what.startswith("in profile cpu: ")
    assert "profiles.cpu.workloads" in (caught.value.next_move or "")
    assert "profiles.cpu.server.max_model_len" in (caught.value.next_move or "")


def test_a_fault_of_the_file_itself_is_laid_to_no_profile(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError) as caught:
        load(tmp_path, replaced("max_model_len: 1024", "max_model_len: 100"))
    assert "profile" not in str(caught.value)
    for asked in ("cuda", "cpu"):
        with pytest.raises(ScenarioError) as caught:
            load(tmp_path, replaced("baseline: a", "baseline: z"), asked)
        assert "profile" not in caught.value.what


def test_a_misspelt_key_gets_a_suggestion_and_the_legal_ones(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError) as caught:
        load(tmp_path, replaced("repeats: 3", "repeat: 3"))
    assert "repeats" in (caught.value.legal or ())
    assert "did you mean 'repeats'?" in str(caught.value)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("repeats", "is no override"),
        ("=1", "is no override"),
        ("repeat=1", "no key 'repeat' to set"),
        ("profiles.cpu.repeats=1", "no key 'profiles' to set"),
        ("workloads.7.concurrency=1", "no item of this list"),
        ("repeats.x=1", "inside a plain value"),
        ("repeats=[", "not valid YAML"),
    ],
)
def test_a_bad_override_is_refused(tmp_path: Path, override: str, message: str) -> None:
    with pytest.raises(ScenarioError, match=message):
        load(tmp_path, GOOD, "cuda", override)


@pytest.mark.parametrize(
    "override", ["repeats=three", "workloads.0.concurrency=[]", "variants.b.port=80"]
)
def test_a_fault_of_an_override_is_placed_on_the_command_line(
    tmp_path: Path, override: str
) -> None:
    with pytest.raises(ScenarioError) as caught:
        load(tmp_path, GOOD, "cuda", override)
    assert caught.value.where == f"--set {override}"


def test_a_fault_of_the_url_is_placed_on_the_command_line(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError) as caught:
        load(tmp_path, GOOD, "cpu", attach="nonsense")
    assert caught.value.where == "--url nonsense"


def test_attach_takes_the_place_of_everything_launched(tmp_path: Path) -> None:
    scenario = load(tmp_path, GOOD, "cpu", attach="http://127.0.0.1:8000/v1")
    assert list(scenario.variants) == ["attached"]
    assert scenario.server == {}
    assert scenario.kv_budget.mode == "engine"


def test_an_attach_scenario_needs_no_model_variants_or_baseline(tmp_path: Path) -> None:
    text = textwrap.dedent("""\
        schema: 1
        name: running
        attach: http://127.0.0.1:8000/v1
        workloads: [{context_tokens: 10, output_tokens: 2, num_prompts: 3, concurrency: 1}]
    """)
    assert load(tmp_path, text).model is None


@pytest.mark.parametrize(
    "url", ["ftp://x/v1", "127.0.0.1:8000", "http://user:pw@host/v1", "http://host/v1?key=1"]
)
def test_an_attach_url_that_is_none_or_holds_a_secret_is_refused(tmp_path: Path, url: str) -> None:
    with pytest.raises(ScenarioError):
        load(tmp_path, GOOD, "cpu", attach=url)


def test_attach_and_server_together_are_refused(tmp_path: Path) -> None:
    text = GOOD + "attach: http://127.0.0.1:8000/v1\n"
    with pytest.raises(ScenarioError, match="with `attach` none is"):
        load(tmp_path, text)


def test_budget_sizes_are_read_with_their_units(tmp_path: Path) -> None:
    text = GOOD + "kv_budget: {equal_bytes: 120MB}\n"
    assert load(tmp_path, text).kv_budget.value_bytes == 120_000_000
    text = GOOD + "kv_budget: {equal_tokens: 5k}\n"
    assert load(tmp_path, text).kv_budget.value_tokens == 5 * 1024
    text = GOOD + "kv_budget: engine\n"
    assert load(tmp_path, text).kv_budget.mode == "engine"


def test_hostile_names_become_safe_folders() -> None:
    assert slugify("<script>alert(1)</script>") == "script-alert-1-script"
    assert slugify("../../etc/passwd") == "etc-passwd"
    assert slugify("..") == "unnamed"
    assert slugify("FP8 (e4m3)") == "fp8-e4m3"


def test_crossed_lists_are_counted_before_they_are_built(tmp_path: Path) -> None:
    # 3 lists of 300 would be 27 million workloads, more than the memory holds.
    lists = ", ".join(
        f"{key}: {list(range(1, 301))}" for key in ("context_tokens", "output_tokens")
    )
    line = f"  - {{{lists}, num_prompts: 50, concurrency: {list(range(1, 301))}}}\n"
    old = GOOD[GOOD.index("  - {context_tokens") : GOOD.index("repeats")]
    with pytest.raises(ScenarioError, match="27,000,000") as caught:
        load(tmp_path, GOOD.replace(old, line))
    assert (caught.value.where or "").endswith("demo.yaml:11 (workloads.0)")


def test_entries_that_exceed_the_limit_together_are_refused(tmp_path: Path) -> None:
    # 2 × (250 × 250 = 62,500) = 125,000.
    entry = (
        f"  - {{context_tokens: {list(range(1, 251))}, output_tokens: 1, num_prompts: 50, "
        f"concurrency: {list(range(1, 251))}}}\n"
    )
    old = GOOD[GOOD.index("  - {context_tokens") : GOOD.index("repeats")]
    with pytest.raises(ScenarioError, match="62,500 more") as caught:
        load(
            tmp_path,
            GOOD.replace(old, entry + entry.replace("output_tokens: 1", "output_tokens: 2")),
        )
    assert (caught.value.where or "").endswith("demo.yaml:12 (workloads.1)")


def test_trials_are_limited_not_workloads_alone(tmp_path: Path) -> None:
    # 60 workloads × 2 variants × 1,000 repeats = 120,000; with 800 repeats 96,000.
    text = GOOD.replace("concurrency: [1, 4]", f"concurrency: {list(range(1, 61))}")
    told = "60 workloads × 2 variants × 1,000 repeats are 120,000 trials"
    with pytest.raises(ScenarioError, match=told) as caught:
        load(tmp_path, text.replace("repeats: 3", "repeats: 1000"))
    assert (caught.value.where or "").endswith("demo.yaml:12 (repeats)")
    assert load(tmp_path, text.replace("repeats: 3", "repeats: 800")).repeats == 800


@pytest.mark.parametrize("index", ["²", "٣", "-1", "9" * 5000, "1.5", "01", "2"])
def test_an_override_takes_only_the_place_of_an_item(tmp_path: Path, index: str) -> None:
    text = GOOD.replace("repeats: 3", "claims: [C1, C2]")
    with pytest.raises(ScenarioError) as caught:
        load(tmp_path, text, "cuda", f"claims.{index}=C3")
    assert caught.value.legal == ("0 to 1",) or index == "1.5"
    assert load(tmp_path, text, "cuda", "claims.1=C3").claims == ("C1", "C3")


@pytest.mark.parametrize("name", ["a\u2028b", "a\u2029", "\u200b", "\u00a0", "a\tb"])
def test_a_name_is_one_line_that_can_be_seen(tmp_path: Path, name: str) -> None:
    escaped = name.encode("unicode-escape").decode()
    with pytest.raises(ScenarioError, match="one line of text"):
        load(tmp_path, GOOD.replace("name: demo", f'name: "{escaped}"'))
    assert load(tmp_path, GOOD.replace("name: demo", 'name: "größer → 5 % ✓"')).name


@pytest.mark.parametrize("drafts", ["many", "1.5", "-5", "0", "true", "[3]", "2000000000"])
def test_draft_tokens_that_are_no_count_are_told_with_their_line(
    tmp_path: Path, drafts: str
) -> None:
    text = GOOD.replace(
        "b: {kv_cache_dtype: fp8", f"b: {{speculative_config: {{num_speculative_tokens: {drafts}}}"
    )
    with pytest.raises(ScenarioError, match="whole number from 1 to 1024") as caught:
        load(tmp_path, text)
    assert "demo.yaml:9 (variants.b.speculative_config)" in (caught.value.where or "")
