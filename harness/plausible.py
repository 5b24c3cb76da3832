"""Whether a stored record can be true: times that run forward, counts that are none below zero.

Method: what kvbench itself writes always passes; a record that was edited, truncated in the
middle or written by a broken clock may not. A line that fails is treated as a damaged one, which
costs the trial its validity; figures are never computed from it. What a server says of its pool is
its own word alone: what can't be true of it is unknown, which costs the theory and not the trial.
Not covered: a forgery that is consistent with itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import pairwise
from types import UnionType
from typing import Any

from harness.record import (
    Judgement,
    QualityAnswer,
    QualityPrompt,
    QualityScore,
    RequestRecord,
    Run,
)
from harness.units import Seconds

#: Thirty years: no trial lasts longer, and sums of such times can't overflow.
MAX_S: Seconds = 1e9
#: No count of tokens, blocks, layers or bytes of a real system is larger.
MAX_COUNT = 1 << 60
#: What is 1 at least wherever it is given, and how large it can be.
_WORKLOAD_COUNTS = (
    *("context_tokens", "output_tokens", "num_prompts", "concurrency"),
    *("shared_prefix_tokens", "turns"),
)
_MAX_LAYERS = 100_000
#: Bytes and operations per second that a processor can have: beyond, ratios to them overflow.
_PEAKS_PER_S = (1.0, 1e24)
#: What the logarithm of a probability can be; rounding may leave it a little above nought.
_LOGPROBS = (-1e6, 1e-3)
#: Two readings of one clock may be stored with different rounding.
_ROUNDING_S: Seconds = 1e-6


def sound_requests(records: Iterable[RequestRecord]) -> list[RequestRecord]:
    """The records that can be true, in their order; of two of one request, the first."""
    seen: set[tuple[str, int]] = set()
    sound = []
    for record in records:
        if (record.phase, record.index) not in seen and _is_sound(record):
            sound.append(record)
            seen.add((record.phase, record.index))
    return sound


def _is_sound(record: RequestRecord) -> bool:
    moments = (
        record.sent_s,
        record.first_chunk_s,
        *record.chunk_times_s,
        record.last_chunk_s,
        record.finished_s,
    )
    times = [moment for moment in moments if moment is not None]
    forward = all(after >= before - _ROUNDING_S for before, after in pairwise(times))
    counts = (
        record.index,
        record.prompt_tokens_planned,
        record.output_tokens_planned,
        record.prompt_tokens,
        record.output_tokens,
        record.cached_prompt_tokens,
    )
    cached, prompt = record.cached_prompt_tokens, record.prompt_tokens
    return (
        forward
        and (cached is None or prompt is None or cached <= prompt)
        and all(-MAX_S < moment < MAX_S for moment in (*times, record.planned_send_s))
        and all(0 <= count < MAX_COUNT for count in counts if count is not None)
    )


def is_sound_prompt(prompt: QualityPrompt) -> bool:
    """Whether a stored question can be true."""
    counts = (prompt.index, prompt.context_tokens or 0, *prompt.prompt_token_ids)
    return _are_counts(counts) and (prompt.depth is None or 0 <= prompt.depth <= 1)


def is_sound_answer(answer: QualityAnswer) -> bool:
    """Whether an answer can be true: nothing in it that is counted is below nought."""
    counts = (answer.index, answer.prompt_tokens or 0, answer.output_tokens or 0)
    return _are_counts((*counts, *(answer.token_ids or ())))


def is_sound_score(score: QualityScore) -> bool:
    """Whether a score can be true: one entry per position, in order, logarithms and ranks each."""
    least, most = _LOGPROBS
    lists = (score.logprobs, score.ranks, score.top_ids, score.top_logprobs)
    if any(len(listed) != len(score.positions) for listed in lists):
        return False
    pairs = zip(score.top_ids, score.top_logprobs, strict=True)
    return (
        _are_counts((score.index, score.prompt_length))
        and _are_counts((*score.positions, *score.ranks), least=1)
        and all(before < after for before, after in pairwise(score.positions))
        and all(0 < len(ids) == len(logprobs) for ids, logprobs in pairs)
        and all(_are_counts(ids) for ids in score.top_ids)
        and all(least <= value <= most for part in _logprobs(score) for value in part)
    )


def _logprobs(score: QualityScore) -> tuple[tuple[float, ...], ...]:
    return score.logprobs, *score.top_logprobs


def is_sound_judgement(judgement: Judgement) -> bool:
    """Whether a verdict can be true: nothing in it that is counted is below nought."""
    return _are_counts(
        (
            *(judgement.prompt_index, judgement.attempts, judgement.malformed),
            *(judgement.prompt_tokens or 0, judgement.output_tokens or 0),
        )
    )


def _are_counts(values: Iterable[object], *, least: int = 0) -> bool:
    return all(_is_count(value, MAX_COUNT, least=least) for value in values)


def run_fault(run: Run) -> str | None:
    """What can't be true in a trial's head; None if nothing is wrong."""
    start_s, end_s = run.load_start_s, run.load_end_s
    if start_s is not None and end_s is not None and not 0 <= start_s <= end_s < MAX_S:
        return f"the load ends ({end_s:g} s) before it begins ({start_s:g} s)"
    return (
        _workload_fault(run.trial.workload)
        or _flag_fault(run.trial.server_flags)
        or _config_fault(run.trial.model_config or {})
        or _peaks_fault(run)
    )


def with_sound_pool(run: Run) -> Run:
    """The run without those counts of its server's pool that no pool can have."""
    if run.server is None:
        return run
    granted = run.server.granted
    counts = ("block_size", "num_gpu_blocks", "kv_cache_tokens", "kv_cache_memory_bytes")
    wrong = {
        key: None
        for key in counts
        if (value := getattr(granted, key)) is not None and not _is_count(value, MAX_COUNT, least=1)
    }
    ratio = granted.max_concurrency
    if ratio is not None and not 0.0 < ratio < MAX_COUNT:
        wrong["max_concurrency"] = None
    if not wrong:
        return run
    return replace(run, server=replace(run.server, granted=replace(granted, **wrong)))


#: What each part of a stored scenario is, where it is given at all; ``*`` stands for any name.
_SHAPES: tuple[tuple[tuple[str, ...], type | UnionType, str], ...] = (
    *(((key,), str, "a text") for key in ("name", "question", "model", "baseline", "engine")),
    *(((key,), dict, "a table") for key in ("server", "env", "slo", "kv_budget", "variants")),
    *(((key,), list, "a list") for key in ("claims", "workloads")),
    (("repeats",), int, "a count"),
    (("quality",), dict | bool, "a table"),
    (("kv_budget", "mode"), str, "a text"),
    (("variants", "*"), dict, "a table"),
    (("variants", "*", "flags"), dict, "a table"),
    (("variants", "*", "env"), dict, "a table"),
    (("workloads", "*"), dict, "a table"),
)


def scenario_fault(scenario: Mapping[str, Any]) -> str | None:
    """What no scenario that was run can have held; None if nothing is wrong."""
    for path, kind, word in _SHAPES:
        for name, value in _found(scenario, path, "scenario"):
            if value is not None and not isinstance(value, kind):
                return f"{name} is {_short(value)}, not {word}"
    faults = (_workload_fault(workload) for workload in scenario.get("workloads") or ())
    return next((f"scenario.{fault}" for fault in faults if fault is not None), None)


def _found(value: Any, path: tuple[str, ...], name: str) -> Iterator[tuple[str, Any]]:
    """The values at the end of a path, each with its dotted name."""
    if not path:
        yield name, value
        return
    parts = enumerate(value) if isinstance(value, list) else value.items() if value else ()
    for key, part in parts:
        if path[0] in ("*", key):
            yield from _found(part, path[1:], f"{name}.{_short(key).strip(chr(39))}")


def _workload_fault(workload: Mapping[str, Any]) -> str | None:
    for key in _WORKLOAD_COUNTS:
        value = workload.get(key)
        if value is not None and not _is_count(value, MAX_COUNT, least=1):
            return f"workload.{key} is {_short(value)}"
    mix = workload.get("length_mix")
    median = mix.get("context_median") if isinstance(mix, dict) else None
    if mix is not None and not _is_count(median, MAX_COUNT, least=1):
        return f"workload.length_mix is {_short(mix)}"
    rate = workload.get("request_rate")
    if rate is not None and not (isinstance(rate, int | float) and 0 < rate < MAX_S):
        return f"workload.request_rate is {_short(rate)}"
    return None


def _flag_fault(flags: Mapping[str, Any]) -> str | None:
    for key, kind in (("kv_cache_dtype", str), ("dtype", str), ("hf_overrides", dict)):
        value = flags.get(key)
        if value is not None and not isinstance(value, kind):
            return f"server_flags.{key} is {_short(value)}"
    return None


def _config_fault(config: Mapping[str, Any]) -> str | None:
    layers = config.get("num_hidden_layers", 1)
    if isinstance(layers, int) and layers > _MAX_LAYERS:
        return f"model_config.num_hidden_layers is {_short(layers)}"
    return None


def _peaks_fault(run: Run) -> str | None:
    peaks = run.environment.cpu_peaks
    least, most = _PEAKS_PER_S
    for key in ("bandwidth_bytes_per_s", "flops_per_s"):
        value = getattr(peaks, key, None)
        if value is not None and not least <= value <= most:
            return f"environment.cpu_peaks.{key} is {value:g}"
    return None


def _is_count(value: object, limit: int, *, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value < limit


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:40] + "…"
