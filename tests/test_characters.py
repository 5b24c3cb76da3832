from __future__ import annotations

import pytest

from harness.characters import harmless, printable


@pytest.mark.parametrize(
    "acting",
    [
        "\x1b",  # begins a terminal's command
        "\x07",  # rings
        "\x7f",
        "\x9b",  # the same as ESC [ to some terminals
        "\u202e",  # the rest of the line is shown from right to left
        "\u2066",
        "\u200f",
        "\u200b",  # has no width
        "\ufeff",
        "\U000e0041",  # a letter that nobody sees
        "\ud800",  # can't be written as UTF-8
    ],
)
def test_what_acts_on_a_reader_is_replaced(acting: str) -> None:
    assert harmless(f"a{acting}b") == printable(f"a{acting}b") == "a�b"


def test_letters_of_every_script_and_the_layout_stay() -> None:
    text = "fp16\tü 漢字 می\u200cخواهم 👩\u200d🚀\n\u00a0—"
    assert harmless(text) == printable(text) == text


def test_a_carriage_return_would_write_over_a_terminals_line() -> None:
    assert harmless("a\r\nb") == "a\r\nb"
    assert printable("safe\rrm -rf") == "safe�rm -rf"
