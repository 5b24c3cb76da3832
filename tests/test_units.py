"""Numbers ↔ text: hand-worked, and unknown is always a dash."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness import units


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("120MB", 120_000_000),
        ("2GiB", 2 * 1024**3),
        ("1.5 kib", 1536),
        ("117964800", 117_964_800),
        (4096, 4096),
    ],
)
def test_memory_sizes_are_read(text: str | int, count: int) -> None:
    assert units.parse_bytes(text) == count


@pytest.mark.parametrize("text", ["", "12 furlongs", "-1GB", "GB", "1e9", "1,000"])
def test_what_is_no_memory_size_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match="120MB or 2GiB"):
        units.parse_bytes(text)


def test_token_counts_are_binary_thousands() -> None:
    assert units.parse_tokens("8k") == 8192
    assert units.parse_tokens("128K") == 131_072
    assert units.parse_tokens("1m") == 1_048_576


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (1 << 30, "1.00 GiB"),
        (117_964_800, "112.50 MiB"),  # 117,964,800 / 2^20 = 112.5
        (1536, "1.50 KiB"),
        (512, "512 B"),
        (0, "0 B"),
        (-(1 << 20), "-1.00 MiB"),
        (None, "—"),
    ],
)
def test_bytes_are_shown_in_binary_units(count: float | None, text: str) -> None:
    assert units.format_bytes(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0013, "1.3 ms"),
        (2.414, "2.41 s"),
        (51.99, "52.0 s"),
        (200, "3 min 20 s"),
        (59.99, "60.0 s"),
        (3661, "1 h 1 min"),
        (None, "—"),
    ],
)
def test_durations_are_shown_at_a_readable_scale(seconds: float | None, text: str) -> None:
    assert units.format_duration(seconds) == text


def test_unknown_is_a_dash_everywhere() -> None:
    assert units.format_count(None) == units.DASH
    assert units.format_rate(None, "tok/s") == units.DASH
    assert units.format_bandwidth(None) == units.DASH
    assert units.format_percent(None) == units.DASH
    assert units.format_ratio(None) == units.DASH
    assert units.format_ratio(float("inf")) == units.DASH
    assert units.milliseconds(None) is None
    assert units.gibibytes(None) is None


def test_figures_carry_their_unit() -> None:
    assert units.format_count(46592) == "46,592"
    assert units.format_rate(110.04, "tok/s") == "110.0 tok/s"
    assert units.format_bandwidth(2.039e12) == "2,039.0 GB/s"
    assert units.format_percent(0.0512) == "5.1 %"
    assert units.format_ratio(1.984) == "1.98×"
    assert units.milliseconds(0.25) == 250.0
    assert units.gibibytes(1 << 31) == 2.0


def test_a_change_carries_its_sign_and_nothing_is_no_loss() -> None:
    assert units.format_change(-0.0512) == "-5.1 %"
    assert units.format_change(0.3) == "+30.0 %"
    assert units.format_change(-1e-9) == "+0.0 %"
    assert units.format_change(None) == units.DASH
    assert units.format_change(float("inf")) == units.DASH


def test_one_thing_is_not_many() -> None:
    assert units.counted(1, "prompt") == "1 prompt"
    assert units.counted(0, "prompt") == "0 prompts"
    assert units.counted(46592, "prompt") == "46,592 prompts"
    assert units.counted(1, "load is", "loads are") == "1 load is"
    assert units.counted(2, "load is", "loads are") == "2 loads are"
    assert units.counted(None, "core") == "— cores"


def test_names_are_told_as_one_says_them() -> None:
    assert units.listed(["a"]) == "a"
    assert units.listed(["a", "b"]) == "a and b"
    assert units.listed(["a", "b", "c"]) == "a, b and c"
    assert units.listed([]) == ""


def test_rates_of_arithmetic_and_ticks_of_ratios() -> None:
    # 3.12e14 / 10¹² = 312
    assert units.format_flops_per_s(3.12e14) == "312 TFLOP/s"
    assert units.format_flops_per_s(1.5e11, 2) == "0.15 TFLOP/s"
    assert units.format_flops_per_s(None) == units.DASH
    ratios = [units.format_tick_ratio(ratio) for ratio in (1.0, 0.25, 1.02)]
    assert ratios == ["1×", "0.25×", "1.02×"]


def test_digits_that_count_are_kept_however_small_a_figure() -> None:
    assert units.format_significant(0.0240189) == "0.024"
    assert units.format_significant(1.234e-7) == "1.23e-07"
    assert units.format_significant(0.0) == units.format_significant(-0.0) == "0"
    assert units.format_significant(12.3456789, 6) == "12.3457"
    assert units.format_significant(None) == units.DASH


#: Widths and sides (``:<28``), and colour channels (``:02x``), turn no number into text.
LAYOUT = re.compile(r"(.?[<>^])?\d*|\{\w+\}|02x")
#: Files that write numbers for machines: the frame of an SVG picture.
FOR_MACHINES = {"style.py"}


def number_formats(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FormattedValue) and node.format_spec is not None:
            spec = ast.unparse(node.format_spec)[2:-1]
            if LAYOUT.fullmatch(spec) is None:
                yield f"{path.name}:{node.lineno} {ast.unparse(node.value)}:{spec}"


def test_pages_and_commands_leave_the_writing_of_numbers_to_units() -> None:
    harness = Path(units.__file__).parent
    files = [path for room in ("report", "cli") for path in (harness / room).rglob("*.py")]
    assert not [
        found for path in files if path.name not in FOR_MACHINES for found in number_formats(path)
    ]
    assert list(number_formats(harness / "units.py"))
