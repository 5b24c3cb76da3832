"""A server that was asked to evict must say so, by the rule asked for."""

from __future__ import annotations

import pytest

from harness.engines.eviction.evidence import in_force_line, require_in_force
from harness.errors import ServerStartError

ENV = {"KVBENCH_EVICTION": "sinks=4,window=512"}
LINE = in_force_line(4, 1, 512, 32, 26)


def test_the_line_says_what_is_kept_and_what_it_means() -> None:
    assert LINE == (
        "KV eviction in force: sinks 4 tokens (1 block), window 512 tokens, blocks of 32 tokens, "
        "at most 26 blocks per request; what lies between is freed, so answers to longer prompts "
        "differ from full attention"
    )


def test_a_log_with_the_line_passes_in_whatever_frame() -> None:
    require_in_force(ENV, f"INFO a\n(EngineCore pid=1) WARNING 11-29 [manager.py:36] {LINE}\nmore")


def test_a_server_that_was_not_asked_owes_no_line() -> None:
    require_in_force({}, "nothing")


@pytest.mark.parametrize("log", ["INFO nothing of the kind", in_force_line(4, 1, 256, 32, 26)])
def test_a_missing_or_another_rule_is_no_silent_fallback(log: str) -> None:
    with pytest.raises(ServerStartError, match="does not say that the rule is in force") as caught:
        require_in_force(ENV, log)
    assert caught.value.kind == "engine"
    assert "VLLM_PLUGINS" in (caught.value.next_move or "")
