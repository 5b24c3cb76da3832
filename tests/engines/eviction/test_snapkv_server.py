"""The real server under the rule by score: text, perplexity behind a cut prompt, blocks, a crowd.

One start serves all checks. Its pool of 140 blocks holds a single prompt of 2,500 tokens at a time
under full attention. How perplexity is measured behind a cut:
``harness/engines/eviction/forced.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from harness.engines.eviction.evidence import require_in_force
from harness.record import GrantedKv
from harness.specs.eviction import SnapKvRule
from harness.theory.snapkv import snapkv_blocks_held, snapkv_most_blocks_held
from tests.engines.eviction.driving import (
    SHORT,
    WHOLE_PROMPTS,
    Engine,
    Reading,
    Seen,
    Use,
    decoded_to_its_end,
    engine,
    perplexity,
    prose,
    snapkv,
)

pytestmark = pytest.mark.engine

RULE = SnapKvRule(512)
PROMPT, FOLLOWED, DECODED = 2500, 500, 40
FLAGS: Mapping[str, Any] = {**WHOLE_PROMPTS, "num_gpu_blocks_override": 140}
#: kvpress 0.5.5's SnapKV that keeps 516 of the same 2,500 tokens, in bf16: `make kvpress`'s measure
#: at a ratio of 1 - 516 / 2,500 (docs/eviction.md).
KVPRESS = (16.65, 7.85, 10.70)


@dataclass(frozen=True)
class Cut:
    """What the server told and showed under the rule."""

    granted: GrantedKv
    log: str
    texts: list[str]
    alone: list[Reading]
    perplexities: list[float]
    together: list[Use]
    crowd: list[str]
    after: Use


def look(server: Engine) -> Cut:
    texts = [server.complete(prompt, 100) for prompt in SHORT]
    long = [server.tokens(prose(part))[: PROMPT + FOLLOWED] for part in range(3)]
    alone = decoded_to_its_end(server, long[0][:PROMPT], DECODED)
    together, followed = followed_and_watched(server, long)
    crowd = server.at_once(_crowd(long[0]), 100, temperature=0.7)
    perplexities = [perplexity(found) for found in followed]
    log, after = server.server.log(), server.settled()
    return Cut(server.granted, log, texts, alone, perplexities, together, crowd, after)


def followed_and_watched(
    server: Engine, texts: list[list[int]]
) -> tuple[list[Use], list[list[float]]]:
    """``Engine.followed`` with the gauges meanwhile, begun anew until both moments were read.

    The first is the computing of the second prompt, the other the decoding of all three. A machine
    that stalls for so long misses one, which says nothing of the engine.
    """
    for _ in range(3):
        with server.watched() as uses:
            followed = server.followed(texts, PROMPT)
        if any(round(use.blocks) == 79 for use in uses) and any(use.running == 3 for use in uses):
            break
    return uses, followed


def _crowd(tokens: list[int]) -> list[list[int]]:
    """Twelve prompts of which some must be thrown out: 139 blocks can't hold eight of 560 tokens.

    Cut, each holds 17 blocks, 7 × 17 + 18 let an eighth in, and 8 × 17 leave 3 free; after 16
    decoded tokens each needs one more.
    """
    lengths = [560] * 8 + [1000, 1000, 40, 40]
    return [tokens[start * 100 : start * 100 + length] for start, length in enumerate(lengths)]


@pytest.fixture(scope="module")
def cut(folder: Path) -> Cut:
    with engine(folder, snapkv(RULE), FLAGS) as server:
        return look(server)


def test_the_server_says_that_the_rule_is_in_force(cut: Cut) -> None:
    require_in_force(snapkv(RULE), cut.log)
    assert cut.log.count("KV eviction in force") == 1


def test_the_advertised_concurrency_is_full_attentions(cut: Cut) -> None:
    """A prompt needs all its blocks until it is computed: 140 / ceil(4,096 / 32) = 1.09375."""
    assert cut.granted.max_concurrency == 1.09375


def test_text_within_the_budget_is_the_stock_engines_to_the_byte(cut: Cut, stock: Seen) -> None:
    assert cut.texts == stock.texts


def test_a_request_holds_its_budget_once_its_prompt_is_computed(cut: Cut) -> None:
    """2,500 tokens: 79 blocks while the prompt is computed, then 17, and 18 from 2,529 on.

    The first token is out before the next step frees the prompt's blocks, so it may be read at 79.
    """
    predicted = {
        snapkv_blocks_held(RULE, 32, PROMPT, PROMPT + step) for step in range(1, DECODED + 1)
    }
    assert predicted == {17, 18}
    held = {reading.blocks for reading in cut.alone}
    assert snapkv_most_blocks_held(RULE, 32, PROMPT, PROMPT + DECODED) == 79
    assert {18} <= held <= {*predicted, 79}


def test_three_prompts_decode_in_a_pool_that_holds_one(cut: Cut) -> None:
    """A step computes one prompt: 79 blocks, 17 + 79, 17 + 17 + 79 = 113; full ones need 237.

    The gauge shows the first 79 while the second prompt is computed. At the end 3 × ceil((3,000 −
    1,984) / 32) = 96 are held.
    """
    held = {round(use.blocks) for use in cut.together}
    assert max(use.running for use in cut.together) == 3
    assert 79 in held
    assert max(held) <= 113
    assert max(use.preemptions for use in cut.together) == 0


@pytest.mark.parametrize("text", [0, 1, 2])
def test_perplexity_behind_the_cut_is_kvpresss(cut: Cut, text: int) -> None:
    """Full attention's is 15.98 / 7.66 / 3.89, so the third tells a cut from none."""
    assert cut.perplexities[text] == pytest.approx(KVPRESS[text], rel=0.03)


def test_a_crowd_that_is_thrown_out_and_begun_anew_ends_and_gives_all_back(cut: Cut) -> None:
    assert len(cut.crowd) == 12
    assert all(len(text) > 20 for text in cut.crowd)
    assert cut.after.preemptions > 0
    assert (cut.after.blocks, cut.after.running) == (0.0, 0.0)
