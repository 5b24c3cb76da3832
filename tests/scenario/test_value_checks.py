"""Values that nothing downstream could store, print or pass on are refused at the door."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.errors import ScenarioError
from harness.scenario import load_scenario
from harness.scenario.value_checks import faults

SCENARIO = """\
schema: 1
name: plain
model: smollm2-135m-instruct
baseline: a
variants:
  a: {kv_cache_dtype: auto}
  b: {kv_cache_dtype: fp8}
workloads:
  - {context_tokens: 64, output_tokens: 16, num_prompts: 2, concurrency: 2}
"""


def refusal(folder: Path, old: str, new: str) -> ScenarioError:
    """The error that the scenario gives once ``old`` is ``new`` in it."""
    assert old in SCENARIO
    file = folder / "s.yaml"
    file.write_text(SCENARIO.replace(old, new), encoding="utf-8")
    with pytest.raises(ScenarioError) as caught:
        load_scenario(file, "cpu")
    return caught.value


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("\x1b[31mred", "U+001B, a control character"),
        ("\ud800", "surrogate"),
        ("\u202egnp", "reading direction"),
        (float("nan"), "no number"),
        (float("-inf"), "no number"),
        (2**63, "64 bits"),
        (b"hi", "YAML type bytes"),
        ({"a": [{"b": "hf_" + "x" * 30}]}, "access token"),
        ({"\x00": 1}, "in this key"),
    ],
)
def test_what_is_not_plain_is_named(value: object, message: str) -> None:
    found = [fault for fault, _ in faults(value)]
    assert len(found) == 1
    assert message in found[0]


def test_every_letter_of_every_script_and_line_ends_are_plain() -> None:
    assert not list(faults({"frage": "Größe 漢字 👩‍👩‍👧\n\tعربي", "n": [1, -2.5, True, None]}))


def test_endless_nesting_is_named_once_and_not_followed() -> None:
    value: object = 1
    for _ in range(5000):
        value = [value]
    assert len(list(faults(value))) == 1


@pytest.mark.parametrize("key", ["on", "no", "1", "2.5", "null"])
def test_a_variant_name_that_yaml_takes_for_something_else_wants_quotes(
    tmp_path: Path, key: str
) -> None:
    error = refusal(tmp_path, "  b:", f"  {key}:")
    assert f"the key `{key}`" in error.what
    assert (error.where or "").endswith(":7")
    assert error.next_move == f'put it in quotes: "{key}"'


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("name: plain", 'name: " "', "one line of text"),
        ("name: plain", 'name: "a\\nb"', "one line of text"),
        ("  b:", '  "":', "one line of text"),
        ("variants:\n  a: {kv_cache_dtype: auto}\n  b: {kv_cache_dtype: fp8}", "variants: {}", "1"),
        ("num_prompts: 2", "num_prompts: 0x" + "f" * 5000, "64 bits"),
        ("concurrency: 2", "request_rate: 1" + "0" * 400, "64 bits"),
        ("concurrency: 2", "request_rate: 1.0e-300", "must be at least 1e-06"),
        ("concurrency: 2", "concurrency: 2, length_mix: {context_median: 9, sigma: 99}", "10"),
        ("auto}", "auto, max_model_len: 8k}", "whole number"),
        ("auto}", "auto, block_size: true}", "whole number"),
        ("{kv_cache_dtype: auto}", "{kv_cache_dtype: 8}", "kv_cache_dtype is text"),
        ("auto}", 'auto, enable_prefix_caching: "off"}', "true or false"),
        ("auto}", "auto, hf_overrides: x}", "a mapping"),
        ("auto}", "auto, hf_token: abc}", "secret"),
        ("auto}", "auto, kv_transfer_config: {extra: {api_key: abc}}}", "secret"),
        ("baseline: a", "baseline: a\nkv_budget: {equal_bytes: " + "9" * 400 + "GB}", "beyond"),
    ],
)
def test_values_that_would_fail_later_fail_at_the_door(
    tmp_path: Path, old: str, new: str, message: str
) -> None:
    error = refusal(tmp_path, old, new)
    assert message in str(error)
    assert "s.yaml:" in (error.where or "")
    assert len(error.what) < 300, "a huge value is not quoted whole"


def test_flags_about_token_counts_are_no_secrets(tmp_path: Path) -> None:
    file = tmp_path / "s.yaml"
    file.write_text(
        SCENARIO.replace("auto}", "auto, max_num_batched_tokens: 256}"), encoding="utf-8"
    )
    assert load_scenario(file, "cpu").variants["a"].flags["max_num_batched_tokens"] == 256


def test_a_raw_control_character_is_named_with_its_line(tmp_path: Path) -> None:
    error = refusal(tmp_path, "name: plain", "name: pl\x07ain")
    assert "U+0007" in error.what
    assert (error.where or "").endswith(":2")


@pytest.mark.parametrize(
    "url",
    ["http://127.0.0.1:99999/v1", "http://127.0.0.1:x/v1", "http://127.0.0.1: 80/v1",
     "http://[::1/v1", "http://host/v1#part", "http://h\u00f6st/v1"],
)  # fmt: skip
def test_a_url_that_no_client_could_open_is_refused(tmp_path: Path, url: str) -> None:
    file = tmp_path / "s.yaml"
    file.write_text(SCENARIO, encoding="utf-8")
    with pytest.raises(ScenarioError, match="URL"):
        load_scenario(file, "cpu", attach=url)


def test_an_override_is_held_to_the_same(tmp_path: Path) -> None:
    file = tmp_path / "s.yaml"
    file.write_text(SCENARIO, encoding="utf-8")
    for override in ("variants.a.x=.nan", 'name="\\e[2J"', "variants={on: {}}"):
        with pytest.raises(ScenarioError) as caught:
            load_scenario(file, "cpu", overrides=[override])
        assert "--set" in (caught.value.where or "")
