"""Drives a real vLLM server with and without eviction: texts, perplexities, blocks held."""

from __future__ import annotations

import contextlib
import json
import math
import pydoc_data.topics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from harness.engines import models, vllm
from harness.record import GrantedKv
from harness.specs.eviction import SnapKvRule
from harness.telemetry.engine import EngineSource, read_granted

MODEL = "smollm2-135m-instruct"
GIB = 1 << 30
BLOCK = 32
#: The last tokens of an answer at which a request is in its last block for sure.
LAST = BLOCK // 4
#: What all runs of docs/eviction.md share, unless they say otherwise.
FLAGS: Mapping[str, Any] = {
    "block_size": BLOCK,
    "max_num_batched_tokens": 256,
    "enable_prefix_caching": False,
    "max_model_len": 4096,
    "enforce_eager": True,
    "gpu_memory_utilization": 0.3,
    "kv_cache_memory_bytes": GIB,
}
#: The same for the rule by score, which needs whole prompts; decoding can follow a text.
WHOLE_PROMPTS: Mapping[str, Any] = {
    **FLAGS,
    "max_num_batched_tokens": 4096,
    "enable_chunked_prefill": False,
    "logits_processors": "harness.engines.eviction.forced:ForcedTokens",
}
#: The plugin list of the engine itself, ours left out: the stock engine.
STOCK = {"VLLM_PLUGINS": ""}


def prose(part: int = 0) -> str:
    """English technical prose that every CPython carries; parts are far apart in it."""
    whole = "\n\n".join(pydoc_data.topics.topics[key] for key in sorted(pydoc_data.topics.topics))
    return whole[part * 100_000 :][:40_000]


@dataclass(frozen=True)
class Use:
    """Blocks in use, requests running and totals, as the engine told them once."""

    at_s: float
    blocks: float
    running: float
    preemptions: float
    prefix_hits: float


@dataclass(frozen=True)
class Reading:
    """Blocks in use, read when at least ``tokens`` of the only request's answer were out."""

    tokens: int
    blocks: int


class Engine:
    """A running server and the few questions that the checks ask it."""

    def __init__(self, server: vllm.Server) -> None:
        self.server = server
        self.granted = read_granted(server.root_url, 30.0)

    def ask(self, path: str, **body: Any) -> dict[str, Any]:
        body = {"model": vllm.SERVED_NAME, **body}
        answer = httpx.post(
            f"{self.server.root_url}{path}", json=body, timeout=600, trust_env=False
        )
        answer.raise_for_status()
        return answer.json()

    def tokens(self, text: str) -> list[int]:
        return self.ask("/tokenize", prompt=text)["tokens"]

    def complete(self, prompt: Sequence[int] | str, tokens: int, **more: Any) -> str:
        body = {"temperature": 0.0, "ignore_eos": True, **more}
        answer = self.ask("/v1/completions", prompt=prompt, max_tokens=tokens, **body)
        return answer["choices"][0]["text"]

    def logprobs(self, prompt: list[int]) -> list[float]:
        """Natural logarithm of the probability of each token of a prompt but the first."""
        answer = self.ask(
            "/v1/completions", prompt=prompt, max_tokens=1, temperature=0.0, prompt_logprobs=0
        )
        told = answer["choices"][0]["prompt_logprobs"][1:]
        return [step[str(token)]["logprob"] for step, token in zip(told, prompt[1:], strict=True)]

    def followed(self, texts: Sequence[list[int]], prompt: int) -> list[list[float]]:
        """Log-probabilities of each text's tokens behind its first ``prompt``, decoded together."""
        with ThreadPoolExecutor(len(texts)) as pool:
            return list(pool.map(lambda text: self._followed(text, prompt), texts))

    def _followed(self, text: list[int], prompt: int) -> list[float]:
        answer = self.ask(
            "/v1/completions",
            prompt=text[:prompt],
            max_tokens=len(text) - prompt,
            temperature=0.0,
            ignore_eos=True,
            logprobs=0,
            return_tokens_as_token_ids=True,
            vllm_xargs={"forced": text[prompt:]},
        )
        told = answer["choices"][0]["logprobs"]
        assert told["tokens"] == [f"token_id:{token}" for token in text[prompt:]]
        return told["token_logprobs"]

    def use(self) -> Use:
        with self._gauges() as source:
            return self._use(source)

    def settled(self) -> Use:
        """The gauges once no request runs: the engine tells of a step only after the answer."""
        deadline = time.monotonic() + 10
        with self._gauges() as source:
            while (use := self._use(source)).running and time.monotonic() < deadline:
                time.sleep(0.05)
        return use

    def _gauges(self) -> contextlib.closing[EngineSource]:
        return contextlib.closing(EngineSource(self.server.root_url, 30.0))

    def _use(self, source: EngineSource) -> Use:
        (sample,) = source.read(time.monotonic())
        blocks, told = self.granted.num_gpu_blocks, sample.kv_cache_usage
        running, thrown_out = sample.requests_running, sample.preemptions_total
        # A page that could not be read must not pass for an empty pool.
        assert None not in (blocks, told, running, thrown_out), source.problems
        assert blocks is not None
        assert told is not None
        return Use(
            time.monotonic(),
            told * (blocks - 1),
            running or 0.0,
            thrown_out or 0.0,
            sample.prefix_cache_hits_total or 0.0,
        )

    def decoded(self, prompt: Sequence[int], tokens: int) -> list[Reading]:
        """The gauges as read between the tokens of an answer while its request ran.

        Read at every fourth token and at the last ones: a reading takes as long as a token does,
        and whoever falls behind finds the request over.
        """
        body: dict[str, Any] = {"model": vllm.SERVED_NAME, "prompt": prompt, "max_tokens": tokens}
        body |= {"temperature": 0.0, "ignore_eos": True, "stream": True}
        body |= {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}
        url, readings = f"{self.server.root_url}/v1/completions", []
        with (
            self._gauges() as source,
            httpx.stream("POST", url, json=body, timeout=600, trust_env=False) as answer,
        ):
            answer.raise_for_status()
            for line in answer.iter_lines():
                if not line.startswith("data: {"):
                    continue
                out = json.loads(line.removeprefix("data: "))["usage"]["completion_tokens"]
                if out % 4 and out <= tokens - LAST:
                    continue
                use = self._use(source)
                if use.running:
                    readings.append(Reading(out, round(use.blocks)))
        return readings

    @contextlib.contextmanager
    def watched(self, every_s: float = 0.05) -> Iterator[list[Use]]:
        """Samples of the gauges for as long as the block runs."""
        seen: list[Use] = []
        done = threading.Event()

        def watch() -> None:
            with self._gauges() as source:
                while not done.wait(every_s):
                    seen.append(self._use(source))

        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            yield seen
        finally:
            done.set()
            watcher.join()

    def at_once(self, prompts: Sequence[list[int]], tokens: int, **more: Any) -> list[str]:
        """Complete several prompts together, in one request: none is late."""
        body = {"temperature": 0.0, "ignore_eos": True, **more}
        answer = self.ask("/v1/completions", prompt=list(prompts), max_tokens=tokens, **body)
        told = {choice["index"]: choice["text"] for choice in answer["choices"]}
        return [told[index] for index in range(len(prompts))]


@contextlib.contextmanager
def engine(
    folder: Path, env: Mapping[str, str], flags: Mapping[str, Any] = FLAGS
) -> Iterator[Engine]:
    """A server of the embedded model."""
    model = models.resolve(MODEL)
    spec = vllm.ServerSpec(model.argument, flags, env, model.offline)
    log = folder / f"{time.monotonic_ns()}.log"
    with vllm.Server.launch(spec, log, timeout_s=180) as server:
        yield Engine(server)


#: Tokens of the text that every server computes, and of its answer.
LENGTH, DECODED = 3000, 128
SHORT = (
    "What is the capital of France?",
    "Write a haiku about rain.",
    "def fibonacci(n):",
    "List the planets of the solar system in order:",
)


@dataclass(frozen=True)
class Seen:
    """What one server told and showed."""

    granted: GrantedKv
    log: str
    tokens: list[int]
    texts: list[str]
    logprobs: list[float]
    throughout: list[Use]
    decoding: list[Reading]
    crowd: list[str]
    after: Use


def look(server: Engine, *, decoding: bool, crowded: bool) -> Seen:
    """Ask what every server is asked; some decode a long answer, and some a crowd as well."""
    tokens = server.tokens(prose())[:LENGTH]
    texts = [server.complete(prompt, 100) for prompt in SHORT]
    logprobs = server.logprobs(tokens)
    uses, readings, crowd = [], [], []
    if decoding:
        with server.watched() if crowded else contextlib.nullcontext([]) as uses:
            readings = decoded_to_its_end(server, tokens, DECODED)
    if crowded:
        crowd = server.at_once([tokens[:length] for length in (40, 500, 900, 1700)], 24)
    after = server.settled()
    log = server.server.log()
    return Seen(server.granted, log, tokens, texts, logprobs, uses, readings, crowd, after)


def decoded_to_its_end(server: Engine, prompt: Sequence[int], tokens: int) -> list[Reading]:
    """``Engine.decoded``, begun anew until the gauges were read at a request's last block.

    A machine that stalls for a second lets no reading fall between the last tokens, which says
    nothing of the engine.
    """
    for _ in range(5):
        readings = server.decoded(prompt, tokens)
        if readings and readings[-1].tokens > tokens - LAST:
            return readings
    raise AssertionError(f"no reading near the end of {tokens} tokens in five requests")


def served(
    folder: Path, env: dict[str, str], *, decoding: bool = False, crowded: bool = False
) -> Seen:
    with engine(folder, env) as server:
        return look(server, decoding=decoding, crowded=crowded)


def evicting(sinks: int, window: int) -> dict[str, str]:
    return {"KVBENCH_EVICTION": f"sinks={sinks},window={window}"}


def snapkv(rule: SnapKvRule) -> dict[str, str]:
    return {"KVBENCH_EVICTION": str(rule)}


def perplexity(logprobs: Sequence[float]) -> float:
    return math.exp(-sum(logprobs) / len(logprobs))


def span(logprobs: Sequence[float], first: int, last: int) -> Sequence[float]:
    """Of the tokens at positions ``first`` to ``last``; the list begins with position 1."""
    return logprobs[first - 1 : last - 1]


def reference(tokens: list[int], rules: Sequence[Mapping[str, int] | None]) -> list[list[float]]:
    """The same log-probabilities by transformers in fp32, the rule an explicit mask."""
    asked = {"model": models.resolve(MODEL).argument, "tokens": tokens, "rules": list(rules)}
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("reference.py"))],
        input=json.dumps(asked),
        capture_output=True,
        check=False,
        timeout=600,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])
