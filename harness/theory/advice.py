"""Which KV-cache strategies let so many requests of one length run on one kind of GPU, in theory.

Method: each strategy is a change of the server's settings; what fits is counted as the engine
plans it (``capacity``) in the bytes that the card leaves (``budget``); decoding is bounded by the
roofline at the requests that fit, at most those asked for, all at their full length, and TTFT by
that of a prompt alone. Where the cache in the model's own dtype does not hold them, more cards (up
to eight times as many) are weighed until it does, with FP8 beside it; two strategies at once where
no flag is enough. Recommended is the least effort under which all requests fit: flags, then more
cards, then another model, then a plugin; what costs more quality than FP8 (INT4) is told and never
recommended unmeasured. What the engine or the plugin would refuse has no figures, but a reason.
Every figure is modelled; none was measured.

Not covered: answer quality (what a strategy gives up is told in words), queueing, communication
between cards, and offloading's speed, which depends on the host's link: measure them
(``kvbench bench``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import Literal

from harness.errors import InputError
from harness.specs.eviction import EvictionRule
from harness.specs.gpu import GpuSpec, memory_note
from harness.specs.model import ModelSpec
from harness.specs.pool import usable_blocks
from harness.theory.budget import DEFAULT_UTILIZATION, MemoryBudget, plan_budget
from harness.theory.capacity import KvCapacity, predict_capacity
from harness.theory.prefix import shared_blocks
from harness.theory.roofline import ceilings_of, decode_work, prefill_work
from harness.theory.settings import EngineSettings
from harness.theory.unserved import eviction_unserved, kv_dtype_unserved, window_pointless
from harness.units import Seconds, Tokens, format_bytes, format_count

Effort = Literal["none", "flags", "more GPUs", "model change", "plugin"]

#: Anchor tokens of the eviction that is modelled; a block or two is what the chapter suggests.
_SINKS: Tokens = 16
#: The chapter's saving by eviction is 2–4×; the stronger end is modelled.
_EVICTED_TO = 4
_MISTRAL_WINDOW: Tokens = 4096
#: What paging is compared with; nothing that a server of today could be told.
WHOLE_LENGTH = "whole-length reservations (no paging)"
_UNSHARED = " --no-enable-prefix-caching"
#: How many times as many cards are tried; a server's tensor parallelism seldom goes beyond eight.
_MORE_CARDS = (2, 4, 8)


@dataclass(frozen=True, slots=True)
class Case:
    """What is to be served: requests of so many tokens (output included), so many at once."""

    context_tokens: Tokens
    concurrency: int
    output_tokens: Tokens = 256
    shared_prefix_tokens: Tokens = 0


@dataclass(frozen=True, slots=True)
class Option:
    """One strategy for a case; ratios are to plain paging at the model's own dtype.

    ``concurrency`` is how many such requests fit at once, ``throughput_tokens_per_s`` an upper
    bound on decoding with those that fit, ``ttft_s`` a lower bound without queueing. Bytes are
    those of one of ``gpus`` cards. None where ``reason`` says why nothing can be computed.
    """

    strategy: str
    effort: Effort
    change: str
    quality_loss: str
    gpus: int = 1
    kv_bytes_per_request: float | None = None
    concurrency: float | None = None
    fits: bool | None = None
    throughput_tokens_per_s: float | None = None
    ttft_s: Seconds | None = None
    memory_ratio: float | None = None
    capacity_ratio: float | None = None
    throughput_ratio: float | None = None
    ttft_ratio: float | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Advice:
    """All options of a case on ``gpus`` cards; ``recommended`` is None where none will do.

    ``notes`` tell what the budget rests on.
    """

    case: Case
    gpu: str
    budget: MemoryBudget
    options: tuple[Option, ...]
    recommended: str | None
    why: str
    gpus: int
    notes: tuple[str, ...]


def advise(
    model: ModelSpec,
    settings: EngineSettings,
    gpu: GpuSpec,
    case: Case,
    *,
    utilization: float = DEFAULT_UTILIZATION,
) -> Advice:
    """Weigh the strategies for one case.

    Raises:
        InputError: a case that the model can't serve, or settings that it can't be split by.
        UnsupportedModel: a layout that is not modelled.
    """
    _check(model, case)
    settings = replace(settings, max_model_len=settings.max_model_len or case.context_tokens)
    served = _serve(model, settings, gpu, case, utilization)
    budget = served.budget
    options = [_option(strategy, served) for strategy in _strategies(case)]
    if not any(option.fits and option.effort == "none" for option in options):
        options += _on_more_cards(served)
    if not any(option.fits and option.effort in _EASY and _advisable(option) for option in options):
        joined = (_option(two, served) for two in _joined(case))
        options += [option for option in joined if option.reason is None]
    told = tuple(_against(option, options[0]) for option in options)
    recommended, why = _recommend(told, budget, case)
    cards, notes = settings.tensor_parallel_size, (memory_note(gpu), *_estimated(budget))
    return Advice(case, gpu.name, budget, told, recommended, why, cards, notes)


def _estimated(budget: MemoryBudget) -> Iterator[str]:
    """The weights' assumption where they are no plain count."""
    weights = budget.terms[0]
    if "estimate" in weights.assumption or "×" in weights.assumption:
        yield f"weights {format_bytes(weights.bytes)}: {weights.assumption}"


@dataclass(frozen=True, slots=True)
class _Served:
    """A case on cards of one kind; ``settings`` say how many."""

    model: ModelSpec
    settings: EngineSettings
    gpu: GpuSpec
    case: Case
    budget: MemoryBudget

    def on_cards(self, times: int) -> _Served:
        cards = self.settings.tensor_parallel_size * times
        settings = replace(self.settings, tensor_parallel_size=cards)
        return _serve(self.model, settings, self.gpu, self.case, self.budget.utilization)


def _serve(
    model: ModelSpec, settings: EngineSettings, gpu: GpuSpec, case: Case, utilization: float
) -> _Served:
    budget = plan_budget(
        model,
        settings,
        gpu.memory_bytes,
        utilization=utilization,
        context_tokens=case.context_tokens,
    )
    return _Served(model, settings, gpu, case, budget)


def _check(model: ModelSpec, case: Case) -> None:
    if not 0 < case.output_tokens < case.context_tokens:
        raise InputError("the output must leave room for a prompt within the context")
    if case.shared_prefix_tokens >= case.context_tokens - case.output_tokens:
        raise InputError("a shared prefix must leave each prompt a part of its own")
    if case.concurrency < 1:
        raise InputError("a case needs at least one request")
    if case.context_tokens > model.max_model_len:
        raise InputError(
            f"{model.name} is made for {model.max_model_len:,} tokens, not {case.context_tokens:,}",
            where="--context",
        )


# ── the strategies ──────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class _Strategy:
    """How a strategy changes the settings; ``how`` names what is counted differently."""

    name: str
    effort: Effort
    change: str
    quality_loss: str
    kv_cache_dtype: str | None = None
    eviction: EvictionRule | None = None
    how: Literal["paged", "reserved", "shared", "offloaded"] = "paged"


_PLAIN = _Strategy("paging, model's own dtype", "none", "vLLM's default", "none")
_FP8 = _Strategy(
    "FP8 KV cache",
    "flags",
    "--kv-cache-dtype fp8",
    "usually small; without calibrated scales it can break answers: measure it",
    kv_cache_dtype="fp8",
)
_INT4 = _Strategy(
    "INT4 KV cache, scales per token and head",
    "flags",
    "--kv-cache-dtype int4_per_token_head",
    "more than with FP8: not recommended before it is measured",
    kv_cache_dtype="int4_per_token_head",
)
_WINDOW = _Strategy(
    f"sliding window of {_MISTRAL_WINDOW:,}",
    "model change",
    "a model that was trained with one",
    "what lies behind the window is not seen",
    eviction=EvictionRule(0, _MISTRAL_WINDOW),
)
_OFFLOADED = _Strategy(
    "CPU offloading",
    "flags",
    "--kv-offloading-size GIB",
    "none; it adds latency",
    how="offloaded",
)
_RESERVED = _Strategy(
    WHOLE_LENGTH,
    "none",
    "what paging replaced; not offered by vLLM",
    "none",
    how="reserved",
)


def _shared(case: Case) -> _Strategy:
    return _Strategy(
        f"sharing a prefix of {case.shared_prefix_tokens:,} tokens",
        "none",
        "prefix caching, vLLM's default",
        "none",
        how="shared",
    )


def _eviction(case: Case) -> _Strategy:
    kept = max(case.context_tokens // _EVICTED_TO, 1)
    rule = EvictionRule(_SINKS, kept)
    return _Strategy(
        f"token eviction, {_SINKS} sinks and the last {kept:,}",
        "plugin",
        f"KVBENCH_EVICTION={rule}",
        "what is evicted is lost; how much that costs depends on the text",
        eviction=rule,
    )


def _with_fp8(strategy: _Strategy) -> _Strategy:
    lossless = strategy.quality_loss == "none"
    also = "" if strategy.effort == "none" else f", {strategy.change}"
    return replace(
        strategy,
        name=f"FP8 and {strategy.name}",
        effort="flags" if strategy.effort == "none" else strategy.effort,
        change=f"{_FP8.change}{also}",
        quality_loss=_FP8.quality_loss
        if lossless
        else f"that of FP8, and: {strategy.quality_loss}",
        kv_cache_dtype=_FP8.kv_cache_dtype,
    )


def _joined(case: Case) -> Iterator[_Strategy]:
    """FP8 on top of what keeps fewer tokens."""
    yield from map(_with_fp8, (_WINDOW, _eviction(case)))


def _strategies(case: Case) -> Iterator[_Strategy]:
    if case.shared_prefix_tokens:
        shared = _shared(case)
        yield replace(_PLAIN, effort="flags", change=_UNSHARED.strip())
        yield from (shared, _with_fp8(shared), replace(_FP8, change=f"{_FP8.change}{_UNSHARED}"))
        yield replace(_INT4, change=f"{_INT4.change}{_UNSHARED}")
    else:
        yield from (_PLAIN, _FP8, _INT4)
    yield from (_WINDOW, _eviction(case), _OFFLOADED, _RESERVED)


def _on_more_cards(served: _Served) -> Iterator[Option]:
    """The model's own dtype on twice, four and eight times the cards until it fits, FP8 beside."""
    packed_fits = False
    for times in _MORE_CARDS:
        try:
            wider = served.on_cards(times)
            lossless, packed = (_option(way, wider) for way in _over(wider))
        except InputError:
            # More cards than the model's heads can be split over.
            return
        if lossless.reason is not None:
            return
        yield lossless
        if not packed_fits:
            yield packed
        packed_fits = packed_fits or bool(packed.fits)
        if lossless.fits:
            return


def _over(wider: _Served) -> tuple[_Strategy, _Strategy]:
    """Without and with FP8, on more cards; a shared prefix is shared there as it is by default."""
    cards, case = wider.settings.tensor_parallel_size, wider.case
    flag, shared = f"--tensor-parallel-size {cards}", ""
    plain, packed = _PLAIN, _FP8
    if case.shared_prefix_tokens:
        plain, shared = _shared(case), ", prefix shared"
        packed = _with_fp8(plain)
    return (
        replace(
            plain,
            name=f"{cards} GPUs, model's own dtype{shared}",
            effort="more GPUs",
            change=flag,
        ),
        replace(
            packed,
            name=f"{cards} GPUs, {_FP8.name}{shared}",
            effort="more GPUs",
            change=f"{flag} {_FP8.change}",
        ),
    )


def _option(strategy: _Strategy, served: _Served) -> Option:
    model, settings, case = served.model, served.settings, served.case
    pool = max(served.budget.kv_bytes, 0)
    bare = Option(
        strategy.name,
        strategy.effort,
        strategy.change,
        strategy.quality_loss,
        gpus=settings.tensor_parallel_size,
    )
    changed = replace(
        settings,
        kv_cache_dtype=strategy.kv_cache_dtype or settings.kv_cache_dtype,
        eviction=strategy.eviction or settings.eviction,
    )
    if (why := _unserved(strategy, model, changed)) is not None:
        return replace(bare, reason=why)
    try:
        capacity = predict_capacity(model, changed, pool)
        fitting = _fitting(strategy, capacity, case)
        return replace(
            bare,
            kv_bytes_per_request=pool / fitting if fitting else None,
            concurrency=fitting,
            fits=fitting >= case.concurrency,
            throughput_tokens_per_s=_bound(model, changed, served.gpu, case, fitting),
            ttft_s=_ttft(strategy, model, changed, served.gpu, case),
        )
    except InputError as error:
        return replace(bare, reason=error.what)


def _unserved(strategy: _Strategy, model: ModelSpec, changed: EngineSettings) -> str | None:
    """Why a strategy has no figures: nothing to count, or nobody that would serve it."""
    if strategy.how == "offloaded":
        return "the running requests must fit the pool all the same; only waiting ones move out"
    if strategy.effort == "plugin":
        return eviction_unserved(model)
    if strategy.effort == "model change":
        return window_pointless(model, _MISTRAL_WINDOW)
    return kv_dtype_unserved(model, changed)


def _fitting(strategy: _Strategy, capacity: KvCapacity, case: Case) -> float:
    """Requests of the case that fit at once, fractional."""
    blocks = usable_blocks(capacity.num_blocks or 0)
    each = capacity.blocks_per_request(case.context_tokens)
    if strategy.how == "shared":
        once = shared_blocks(case.shared_prefix_tokens, capacity.block_size)
        return max(blocks - once, 0) / (each - once)
    if strategy.how == "reserved":
        return float(blocks // capacity.blocks_per_request(capacity.max_model_len))
    return blocks / each


def _bound(
    model: ModelSpec, settings: EngineSettings, gpu: GpuSpec, case: Case, fitting: float
) -> float | None:
    """Tokens/s that decoding can't exceed with the requests that fit.

    A step of 1.9 requests takes as long as lies between one of one and one of two: rounded down,
    two strategies that hold 1.9 and 2.1 would differ by a factor of two.
    """
    together = min(fitting, case.concurrency)
    if together < 1:
        return None
    ceilings = ceilings_of(gpu, model, settings)

    def step_s(requests: int) -> Seconds:
        return decode_work(model, settings, [case.context_tokens] * requests).least_time(ceilings)

    whole = int(together)
    step = step_s(whole)
    if together > whole:
        step += (together - whole) * (step_s(whole + 1) - step)
    return together / step


def _ttft(
    strategy: _Strategy, model: ModelSpec, settings: EngineSettings, gpu: GpuSpec, case: Case
) -> Seconds:
    """Seconds that a prompt alone takes at least; a shared prefix is there already."""
    there = case.shared_prefix_tokens if strategy.how == "shared" else 0
    prompt = case.context_tokens - case.output_tokens - there
    return prefill_work(model, settings, prompt).least_time(ceilings_of(gpu, model, settings))


def _against(option: Option, plain: Option) -> Option:
    return replace(
        option,
        memory_ratio=_ratio(plain.kv_bytes_per_request, option.kv_bytes_per_request),
        capacity_ratio=_ratio(option.concurrency, plain.concurrency),
        throughput_ratio=_ratio(option.throughput_tokens_per_s, plain.throughput_tokens_per_s),
        ttft_ratio=_ratio(option.ttft_s, plain.ttft_s),
    )


def _ratio(left: float | None, right: float | None) -> float | None:
    return left / right if left and right else None


# ── the recommendation ──────────────────────────────────────────────────────────────────────

#: What a server is given without another card, model or plugin.
_EASY: tuple[Effort, ...] = ("none", "flags")
_BY_EFFORT: tuple[Effort, ...] = (*_EASY, "more GPUs", "model change", "plugin")


def _advisable(option: Option) -> bool:
    """INT4 is never recommended unmeasured."""
    return not option.strategy.startswith(_INT4.name)


def _recommend(
    options: Sequence[Option], budget: MemoryBudget, case: Case
) -> tuple[str | None, str]:
    asked = f"{case.concurrency:,} requests of {case.context_tokens:,} tokens"
    fitting = sorted(
        (option for option in options if option.fits and _advisable(option)),
        key=lambda option: _BY_EFFORT.index(option.effort),
    )
    default = next(option for option in options if option.effort == "none")
    only_int4 = _only_int4(options)
    if not fitting:
        return None, f"{_none_fits(options, budget, asked)}{only_int4}"
    chosen = fitting[0]
    held = f"({format_count(chosen.concurrency, 1)})"
    if chosen is default:
        return chosen.strategy, (
            f"{asked} fit as they are ({format_count(chosen.concurrency, 1)} would"
            f"{_spare(options)}): no strategy is needed for room"
        )
    short = f"{asked} do not fit as they are ({format_count(default.concurrency, 1)} do)"
    if not budget.fits:
        short = _too_large(budget)
    return chosen.strategy, (
        f"{short}; {chosen.strategy} is the least effort that holds all {held}. "
        f"Quality loss: {chosen.quality_loss}. {_best_of_each(fitting, default, case)}"
        f"{only_int4}{_also(fitting, chosen)}"
    )


def _spare(options: Sequence[Option]) -> str:
    packed = next((option for option in options if option.quality_loss == _FP8.quality_loss), None)
    if packed is None or packed.concurrency is None:
        return ""
    return f"; {packed.strategy} would hold {format_count(packed.concurrency, 1)}"


def _best_of_each(fitting: Sequence[Option], default: Option, case: Case) -> str:
    """The least effort without any loss, and the least with FP8, named apart."""
    lossless = next((option for option in fitting if option.quality_loss == "none"), None)
    packed = next((option for option in fitting if option.quality_loss == _FP8.quality_loss), None)
    return f"Lossless: {_lossless(lossless, default, case)}; with FP8: {_named(packed)}"


def _lossless(wider: Option | None, default: Option, case: Case) -> str:
    """One server on more cards, or several as they are where that takes fewer cards."""
    each = int(default.concurrency or 0)
    if each < 1:
        return _named(wider)
    servers = ceil(case.concurrency / each)
    cards = servers * default.gpus
    if wider is not None and wider.gpus <= cards:
        return _named(wider)
    return f"{servers:,} servers as they are ({cards:,} GPUs in all, {each:,} requests on each)"


def _named(option: Option | None) -> str:
    if option is None:
        return "nothing weighed here holds them"
    return f"{option.strategy} ({format_count(option.concurrency, 1)})"


def _only_int4(options: Sequence[Option]) -> str:
    """A word where of the flags INT4 alone would do: that is no recommendation."""
    easy = [option for option in options if option.fits and option.effort in _EASY]
    if not easy or any(map(_advisable, easy)):
        return ""
    return f". Of the flags only {_named(easy[0])} would do: measure its answers first"


def _none_fits(options: Sequence[Option], budget: MemoryBudget, asked: str) -> str:
    weighed = filter(_advisable, options)
    best = max(weighed, key=lambda option: option.concurrency or 0.0)
    nearest = (
        f"{asked} fit under none of these; {best.strategy} comes nearest with "
        f"{format_count(best.concurrency, 1)}. What adds room: {_levers(budget)}"
    )
    return nearest if budget.fits else f"{_too_large(budget)}; {nearest}"


def _too_large(budget: MemoryBudget) -> str:
    return (
        "the weights and overhead alone exceed what the engine may use of one card by "
        f"{format_bytes(-budget.kv_bytes)}"
    )


def _also(fitting: Sequence[Option], chosen: Option) -> str:
    """The ways that fit beside the one recommended and give up something else, by effort."""
    others = [
        option
        for option in fitting
        if option is not chosen and option.quality_loss not in ("none", _FP8.quality_loss)
    ]
    return f". These fit too: {'; '.join(map(_named, others))}" if others else ""


def _levers(budget: MemoryBudget) -> str:
    return "; ".join(lever.change for lever in budget.levers[:2]) or "a larger card"
