"""What loads are called where several stand beside one another."""

from __future__ import annotations

from typing import Any

import pytest

from harness.report.workload_names import name_among

LABEL = "the whole label"


def load(**keys: Any) -> dict[str, Any]:
    base = {"name": None, "context_tokens": 1024, "output_tokens": 16, "concurrency": 4}
    return {**base, "num_prompts": 8, **keys}


@pytest.mark.parametrize(
    ("others", "expected"),
    [
        ((), "chat"),
        # The same load once more, as under another variant.
        ((load(name="chat"),), "chat"),
        ((load(name="batch", concurrency=1),), "chat"),
        ((load(name="chat", concurrency=1),), "chat, 4 at once"),
        ((load(name="chat", context_tokens=64),), "chat, 1,024+16 tokens"),
        (
            (load(name="chat", context_tokens=64), load(name="chat", concurrency=1)),
            "chat, 1,024+16 tokens, 4 at once",
        ),
        # Nothing that a short name could say tells them apart.
        ((load(name="chat", num_prompts=9),), LABEL),
    ],
)
def test_a_load_has_the_shortest_name_that_tells_it_apart(
    others: tuple[dict[str, Any], ...], expected: str
) -> None:
    mine = load(name="chat")
    assert name_among(mine, LABEL, [mine, *others]) == expected


def test_a_lone_load_without_a_name_has_its_label() -> None:
    mine = load()
    assert name_among(mine, LABEL, [mine]) == LABEL
    assert name_among(mine, LABEL, [mine, load(concurrency=1)]) == "4 at once"
