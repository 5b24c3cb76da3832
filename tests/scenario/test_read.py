"""YAML → values: what is refused, and that every fault names its line."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from harness.errors import NotFound, ScenarioError
from harness.scenario.read import MAX_SCENARIO_BYTES, parse_document, parse_value, read_document


def test_every_key_knows_its_line() -> None:
    document = parse_document("a: 1\nb:\n  - c: 2\n    d: 3\n", source="x.yaml")
    assert document.where(("b", 0, "d")) == "x.yaml:4 (b.0.d)"


def test_an_unknown_path_falls_back_to_its_parent_line() -> None:
    document = parse_document("a: 1\nb:\n  c: 2\n", source="x.yaml")
    assert document.where(("b", "missing")) == "x.yaml:2 (b.missing)"


@pytest.mark.parametrize(
    ("text", "message", "line"),
    [
        ("a: 1\na: 2\n", "stands twice", "x.yaml:2"),
        ("a: &x 1\nb: *x\n", "aliases", "x.yaml:2"),
        ("a: [1, 2\n", "not valid YAML", "x.yaml:2"),
        ("a: !!python/object/apply:os.system ['true']\n", "not valid YAML", "x.yaml:1"),
        ("- 1\n", "mapping", "x.yaml"),
        ("", "mapping", "x.yaml"),
        ("a: \t- x\n", "not valid YAML", "x.yaml:1"),
    ],
)
def test_bad_yaml_is_refused_with_its_line(text: str, message: str, line: str) -> None:
    with pytest.raises(ScenarioError, match=message) as caught:
        parse_document(text, source="x.yaml")
    assert (caught.value.where or "").startswith(line)


def test_deep_nesting_is_refused_not_crashed_on() -> None:
    with pytest.raises(ScenarioError, match=r"deep|valid"):
        parse_document("a: " + "[" * 5000 + "]" * 5000, source="x.yaml")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="no such scenario"):
        read_document(tmp_path / "none.yaml")


def test_binary_and_oversized_files_are_refused(tmp_path: Path) -> None:
    binary = tmp_path / "b.yaml"
    binary.write_bytes(b"a: 1\n\xff\xfe\n")
    with pytest.raises(ScenarioError, match="UTF-8") as caught:
        read_document(binary)
    assert caught.value.where == f"{binary}:2"
    big = tmp_path / "big.yaml"
    big.write_bytes(b"#" * (MAX_SCENARIO_BYTES + 1))
    with pytest.raises(ScenarioError, match="bytes"):
        read_document(big)


def test_a_folder_is_no_scenario(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match="can't be read"):
        read_document(tmp_path)


def test_dates_stay_text_and_lists_are_lists() -> None:
    assert parse_value("2026-01-01", source="--set") == "2026-01-01"
    assert parse_value("[1, 4]", source="--set") == [1, 4]


def test_a_file_without_end_is_read_no_further_than_a_scenario_may_be_long() -> None:
    with pytest.raises(ScenarioError, match="more than 1,048,576 bytes"):
        read_document(Path("/dev/zero"))


@pytest.mark.parametrize(
    ("written", "read_as", "advice"),
    [
        ("1e-6", "text", "write 1.0e-6,"),
        ("1.5e3", "text", "write 1500,"),
        ("-2E5", "text", "write -200000,"),
        ("1e400", "text", r"write 1\.0e\+400,"),
        ("1:30", "base 60", "write 90 if that is meant"),
        ("-1:00:30.5", "base 60", r"write -3630\.5 if"),
        ("010", "base 8", "write 10 without the zero"),
    ],
)
def test_a_number_that_yaml_reads_otherwise_is_refused_with_what_to_write(
    written: str, read_as: str, advice: str
) -> None:
    with pytest.raises(ScenarioError, match=read_as) as caught:
        parse_document(f"a: 1\nb: [{{c: {written}}}]\n", source="x.yaml")
    assert caught.value.where == "x.yaml:2"
    assert re.search(advice, caught.value.next_move or "")
    with pytest.raises(ScenarioError, match=read_as):
        parse_value(written, source="--set b")


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("1.0e-6", 1e-6),
        ("'1e-6'", "1e-6"),
        ("!!str 1:30", "1:30"),
        ("0x10", 16),
        ("0", 0),
        ("-0.5", -0.5),
        ("1e6-model", "1e6-model"),
        ("12:30 o'clock", "12:30 o'clock"),
        ("2026-01-01", "2026-01-01"),
        ("=", "="),
    ],
)
def test_a_number_or_text_that_can_be_read_only_one_way_is_taken(
    written: str, value: object
) -> None:
    assert parse_value(written, source="--set b") == value


def test_merge_keys_are_refused_as_aliases_are() -> None:
    with pytest.raises(ScenarioError, match="merge keys") as caught:
        parse_document("a: 1\nb: {<<: {c: 1}}\n", source="x.yaml")
    assert (caught.value.where, caught.value.next_move) == ("x.yaml:2", "write the keys out")
