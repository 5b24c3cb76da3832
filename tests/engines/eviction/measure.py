"""The figures of docs/eviction.md: ``python -m tests.engines.eviction.measure [PART …]``.

All parts but ``against_fp32`` start real servers one after another (about half a minute each beside
their work) and print one JSON object per server. ``against_fp32`` starts none: it reads the
log-probabilities that ``quality`` and ``cuts`` left in ``tests/artifacts`` and holds them against
transformers with the rule as an explicit mask. Nothing is judged but what must hold: every request
ends, every block comes back, and decoding holds as many blocks as predicted.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from harness.specs.eviction import EvictionRule, SnapKvRule
from harness.theory.eviction import blocks_held
from tests.engines.eviction.driving import (
    FLAGS,
    STOCK,
    WHOLE_PROMPTS,
    Engine,
    Use,
    engine,
    evicting,
    perplexity,
    prose,
    reference,
    snapkv,
    span,
)

LENGTH, PROMPT, DECODED = 3000, 2500, 40
KEPT = Path(__file__).resolve().parents[2] / "artifacts" / "eviction"
RULE = EvictionRule(32, 512)


def tell(**found: Any) -> None:
    sys.stdout.write(json.dumps(found) + "\n")
    sys.stdout.flush()


def by_bucket(found: list[float]) -> list[float]:
    edges = range(0, LENGTH, 500)
    return [perplexity(span(found, max(first, 1), first + 500)) for first in edges]


def tail(found: list[float]) -> float:
    return round(perplexity(span(found, 1000, LENGTH)), 2)


def worst_gap(own: list[float], other: list[float]) -> float:
    """The largest relative distance of two runs over buckets of 500 tokens."""
    pairs = zip(by_bucket(own), by_bucket(other), strict=True)
    return round(max(abs(a / b - 1) for a, b in pairs), 4)


def decoding(server: Engine, tokens: list[int]) -> list[Use]:
    """Gauges while tokens are decoded behind a prompt that is still being computed at first."""
    with server.watched(0.03) as seen:
        server.complete(tokens, DECODED)
    assert server.settled().blocks == 0
    return seen


def held(server: Engine, tokens: list[int]) -> dict[str, Any]:
    seen = [round(use.blocks) for use in decoding(server, tokens) if use.running]
    return {"peak": max(seen), "decoding": sorted(set(seen[-8:]))}


def predicted(rule: EvictionRule, block: int) -> list[int]:
    found = {blocks_held(rule, block, LENGTH + step) for step in range(DECODED)}
    return sorted(found)


def leave(name: str, texts: list[list[int]], own: list[list[float]], mask: Any) -> None:
    """Keep what ``against_fp32`` needs."""
    KEPT.mkdir(parents=True, exist_ok=True)
    kept = {"texts": texts, "own": own, "mask": mask}
    (KEPT / f"{name}.json").write_text(json.dumps(kept))


def rule_of(rule: EvictionRule, block: int, chunk: int) -> dict[str, int]:
    return {"sinks": rule.sinks, "window": rule.window, "block": block, "chunk": chunk}


def quality(folder: Path) -> None:
    """Three texts, with and without the rule and its sinks."""
    rules = {"stock": None, "sinks 32": RULE, "sinks 0": EvictionRule(0, 512)}
    texts: list[list[int]] = []
    for name, rule in rules.items():
        env = STOCK if rule is None else evicting(rule.sinks, rule.window)
        with engine(folder, env) as server:
            texts = texts or [server.tokens(prose(part))[:LENGTH] for part in range(3)]
            own = [server.logprobs(tokens) for tokens in texts]
            blocks = held(server, texts[0])
            granted = server.granted
        leave(name, texts, own, None if rule is None else rule_of(rule, 32, 256))
        tell(
            run=name,
            concurrency=granted.max_concurrency,
            tokens=granted.kv_cache_tokens,
            blocks=blocks,
            predicted=None if rule is None else predicted(rule, 32),
            ppl_first_500=round(by_bucket(own[0])[0], 2),
            ppl_1000_3000=[tail(found) for found in own],
        )


def cuts(folder: Path) -> None:
    """Block and chunk sizes, and an FP8 cache: blocks as predicted."""
    for block, chunk, dtype, caching in (
        (32, 64, "auto", False),
        (32, 2048, "auto", False),
        (128, 256, "auto", False),
        (128, 2048, "auto", True),
        (32, 256, "fp8", False),
    ):
        flags = {
            "block_size": block,
            "max_num_batched_tokens": chunk,
            "kv_cache_dtype": dtype,
            "enable_prefix_caching": caching,
        }
        with engine(folder, evicting(32, 512), {**FLAGS, **flags}) as server:
            tokens = server.tokens(prose())[:LENGTH]
            own = server.logprobs(tokens)
            blocks = held(server, tokens)
            granted = server.granted
            repeated = [server.complete(tokens, 8) for _ in range(2 if caching else 0)]
            hits = server.use().prefix_hits
        # Nothing of an evicted request may be found again, and so it is computed anew each time.
        assert not hits
        assert len(set(repeated)) <= 1
        assert set(blocks["decoding"]) <= set(predicted(RULE, block))
        name = f"block {block}, chunk {chunk}, {dtype}"
        leave(name, [tokens], [own], rule_of(RULE, block, chunk))
        tell(
            **flags,
            concurrency=granted.max_concurrency,
            blocks=blocks,
            predicted=predicted(RULE, block),
            ppl_1000_3000=tail(own),
        )


def pooled(server: Engine, prompts: list[list[int]], tokens: int, **more: Any) -> dict[str, Any]:
    began = time.monotonic()
    with server.watched(0.1) as seen:
        texts = server.at_once(prompts, tokens, **more)
    took = time.monotonic() - began
    after = server.settled()
    assert all(texts)
    assert (after.blocks, after.running) == (0, 0)
    return {
        "seconds": round(took, 1),
        "running": max(use.running for use in seen),
        "most_blocks": round(max(use.blocks for use in seen)),
        "preemptions": after.preemptions,
        "distinct_words": [len(set(text.split())) for text in texts],
    }


def crowd(folder: Path) -> None:
    """12 clients of 2,500 + 100 tokens in a pool of 220 blocks, which two full requests fill."""
    flags = {**FLAGS, "num_gpu_blocks_override": 220}
    for name, env in (("sinks 32", evicting(32, 512)), ("stock", STOCK)):
        with engine(folder, env, flags) as server:
            tokens = server.tokens(prose())
            prompts = [tokens[start : start + 2500] for start in range(0, 2400, 200)]
            tell(run=name, **pooled(server, prompts, 100))


def preemption(folder: Path) -> None:
    """8 requests of 600 sampled tokens in 70 blocks: more than fit, so some are thrown out."""
    flags: Mapping[str, Any] = {
        **FLAGS,
        "num_gpu_blocks_override": 70,
        "max_model_len": 1536,
        "max_num_batched_tokens": 128,
    }
    for name, env in (("sinks 32, window 256", evicting(32, 256)), ("stock", STOCK)):
        with engine(folder, env, flags) as server:
            tokens = server.tokens(prose())
            prompts = [tokens[start : start + 200] for start in range(0, 1600, 200)]
            tell(run=name, **pooled(server, prompts, 600, temperature=0.7))


def by_score(folder: Path) -> None:
    """SnapKV beside full attention and sinks with a window, all by decoding along a text."""
    rules: Mapping[str, tuple[Mapping[str, str], int]] = {
        "none": (STOCK, 32),
        "snapkv=512": (snapkv(SnapKvRule(512)), 32),
        "snapkv=1248": (snapkv(SnapKvRule(1248)), 32),
        "snapkv=512, block 128": (snapkv(SnapKvRule(512)), 128),
        "sinks=32,window=480": (evicting(32, 480), 32),
    }
    for name, (env, block) in rules.items():
        flags = {**WHOLE_PROMPTS, "block_size": block, "enable_prefix_caching": block == 128}
        with engine(folder, env, flags) as server:
            texts = [server.tokens(prose(part))[:LENGTH] for part in range(3)]
            with server.watched(0.03) as seen:
                within = server.complete(texts[0][:500], DECODED)
                server.complete(texts[0][:PROMPT], DECODED)
            found = server.followed(texts, PROMPT)
            granted = server.granted
            # Nothing of a cut request may be found again.
            after = server.settled()
            assert (after.blocks, after.prefix_hits) == (0, 0)
        blocks = [round(use.blocks) for use in seen if use.running]
        tell(
            run=name,
            concurrency=granted.max_concurrency,
            blocks=sorted(set(blocks)),
            ppl_2501_3000=[round(perplexity(each), 2) for each in found],
            within=within,
        )


def crowd_by_score(folder: Path) -> None:
    """The crowd and the preemption of the other rule, prompts uncut by chunks."""
    tight = {"num_gpu_blocks_override": 70, "max_model_len": 1536, "max_num_batched_tokens": 1536}
    for name, env, more, length, answer in (
        ("crowd, snapkv=512", snapkv(SnapKvRule(512)), {"num_gpu_blocks_override": 220}, 2500, 100),
        ("preemption, snapkv=256", snapkv(SnapKvRule(256)), tight, 400, 600),
        ("crowd, none", STOCK, {"num_gpu_blocks_override": 220}, 2500, 100),
    ):
        with engine(folder, env, {**WHOLE_PROMPTS, **more}) as server:
            tokens = server.tokens(prose())
            clients = 12 if length == PROMPT else 8
            prompts = [tokens[start * 200 :][:length] for start in range(clients)]
            tell(run=name, **pooled(server, prompts, answer, temperature=0.7))


def against_fp32(_folder: Path) -> None:
    """What servers left, against transformers in fp32 with the rule as an explicit mask."""
    for path in sorted(KEPT.glob("*.json")):
        kept = json.loads(path.read_text())
        for text, (tokens, own) in enumerate(zip(kept["texts"], kept["own"], strict=True)):
            (other,) = reference(tokens, [kept["mask"]])
            tell(
                run=path.stem,
                text=text,
                ppl_1000_3000=tail(own),
                reference=tail(other),
                worst_bucket=worst_gap(own, other),
            )


PARTS = {
    "quality": quality,
    "cuts": cuts,
    "crowd": crowd,
    "preemption": preemption,
    "by_score": by_score,
    "crowd_by_score": crowd_by_score,
    "against_fp32": against_fp32,
}


def chosen() -> Iterator[str]:
    yield from sys.argv[1:] or PARTS


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as logs:
        for part in chosen():
            PARTS[part](Path(logs))
