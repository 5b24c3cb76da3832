"""How time grows with length, with and without a KV cache, and what a reservation leaves empty.

Method: on the reference engine the gap before a token is the time of one step, which saw so many
tokens. Gaps are gathered in octaves of that length (their medians), and an exponent is the slope
of log time on log length over the last factor of eight, one per launch; the interval is Student's t
over the launches. The time of a whole sequence is read off the longest generation at lengths a
factor √2 apart. Both variants also read every weight for every token, which a short sequence can't
hide; so the exponents that test the chapter (C1) are those of the *difference*, paired by repeat:
what is left is the recomputation alone. A cache's bytes are those of its tensors' storage.

Not covered: servers and batches; only sealed trials of the reference engine are read.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median, stdev
from typing import Literal

from harness.analysis.stats import CONFIDENCE, MIN_REPLICATES, least_squares, t_quantile
from harness.errors import InputError
from harness.record import RequestRecord, TrialRecord
from harness.specs.model import model_spec
from harness.theory.capacity import predict_capacity, settings_from_flags
from harness.theory.recompute import kv_computations
from harness.units import Bytes, Fraction, Seconds, Tokens

#: A slope of fewer points, or over less than a factor of three, would be little more than noise.
MIN_POINTS = 3
MIN_SPAN = 3.0
#: Exponents are about long sequences: they are fitted over the last factor of eight in length.
FIT_SPAN = 8.0
#: Readings of a generation's time, each √2 shorter than the one before.
TOTAL_POINTS = 7
#: In a shorter generation an eighth is a handful of tokens.
MIN_GENERATION: Tokens = 64

#: One launch's times by length, shortest first.
Curve = tuple[tuple[float, Seconds], ...]


@dataclass(frozen=True, slots=True)
class PowerFit:
    """time ∝ length^exponent: the mean of the launches' slopes, and their interval.

    ``low``/``high`` are None below 3 launches, and ``reason`` says so.
    """

    exponent: float
    low: float | None
    high: float | None
    launches: int
    points: int
    from_tokens: float
    to_tokens: float
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class TimeGrowth:
    """Times of one variant (or of a difference) by length: medians of the launches, and the fit.

    ``fit`` is None where the lengths are too few or too near to one another.
    """

    curve: Curve
    fit: PowerFit | None


@dataclass(frozen=True, slots=True)
class CacheBytes:
    """Bytes of a cache at the end of one workload's requests, against what their tokens need.

    ``needed_bytes`` is theory: tokens × bytes per token; None where the layout is not known.
    """

    workload_label: str
    sequence_tokens: Tokens
    allocated_bytes: Bytes
    needed_bytes: Bytes | None


@dataclass(frozen=True, slots=True)
class VariantScaling:
    """One way to keep keys and values: time per token, time of a sequence, bytes held."""

    variant: str
    cache: str
    per_token: TimeGrowth
    total: TimeGrowth
    held: tuple[CacheBytes, ...]

    @property
    def allocated_bytes(self) -> Bytes:
        """Bytes of one request of each workload at its end."""
        return sum(held.allocated_bytes for held in self.held)

    @property
    def waste(self) -> Fraction | None:
        """Share of those bytes that holds no token; None where nothing is held or known."""
        needed = [held.needed_bytes for held in self.held if held.needed_bytes is not None]
        if len(needed) < len(self.held) or not self.allocated_bytes:
            return None
        return 1.0 - sum(needed) / self.allocated_bytes


@dataclass(frozen=True, slots=True)
class KvComputations:
    """Keys and values computed for one workload's request, counted by theory."""

    workload_label: str
    prompt_tokens: Tokens
    output_tokens: Tokens
    without_cache: int
    with_cache: int


@dataclass(frozen=True, slots=True)
class Scaling:
    """What a run on the reference engine says about C1 and C6.

    ``recompute_*`` are the differences between recomputing and keeping, None without both.
    """

    variants: tuple[VariantScaling, ...]
    recompute_per_token: TimeGrowth | None
    recompute_total: TimeGrowth | None
    counted: tuple[KvComputations, ...]
    kv_bytes_per_token: float | None
    engine_version: str | None

    def of_cache(self, cache: str) -> VariantScaling | None:
        """The first variant that keeps keys and values this way."""
        return next((found for found in self.variants if found.cache == cache), None)


def scaling(trials: Sequence[TrialRecord]) -> Scaling | None:
    """Analyse the trials of one run; None if none was sealed on the reference engine."""
    own = [t for t in trials if t.run.trial.engine == "reference" and t.run.status == "sealed"]
    if not own:
        return None
    names = dict.fromkeys(trial.run.trial.variant for trial in own)
    by_variant = {name: [t for t in own if t.run.trial.variant == name] for name in names}
    curves = {name: _Curves.of(found) for name, found in by_variant.items()}
    rate = _bytes_per_token(own[0])
    bare, kept = (
        next((c for n, c in curves.items() if _cache(by_variant[n][0]) == kind), None)
        for kind in ("none", "growing")
    )
    spared = bare.minus(kept) if bare is not None and kept is not None else None
    server = own[0].run.server
    return Scaling(
        variants=tuple(
            VariantScaling(
                name,
                _cache(found[0]),
                growth(curves[name].per_token),
                growth(curves[name].total),
                _held(found, rate),
            )
            for name, found in by_variant.items()
        ),
        recompute_per_token=growth(spared.per_token) if spared is not None else None,
        recompute_total=growth(spared.total) if spared is not None else None,
        counted=_counted(own),
        kv_bytes_per_token=rate,
        engine_version=server.engine_version if server is not None else None,
    )


def _cache(trial: TrialRecord) -> str:
    return str(trial.run.trial.server_flags.get("cache") or "growing")


# ── curves ──────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class _Curves:
    """One variant's curves, by repeat."""

    per_token: Mapping[int, Curve]
    total: Mapping[int, Curve]

    @classmethod
    def of(cls, trials: Sequence[TrialRecord]) -> _Curves:
        repeats = sorted({trial.run.trial.repeat for trial in trials})
        requests = {
            repeat: [
                request
                for trial in trials
                if trial.run.trial.repeat == repeat
                for request in trial.requests
                if request.phase == "measured" and request.error is None
            ]
            for repeat in repeats
        }
        return cls(
            {repeat: step_curve(found) for repeat, found in requests.items()},
            {repeat: total_curve(found) for repeat, found in requests.items()},
        )

    def minus(self, other: _Curves) -> _Curves:
        """What this one takes longer, at the lengths and in the repeats that both have."""
        return _Curves(
            _difference(self.per_token, other.per_token), _difference(self.total, other.total)
        )


def _difference(left: Mapping[int, Curve], right: Mapping[int, Curve]) -> dict[int, Curve]:
    found: dict[int, Curve] = {}
    for repeat in left.keys() & right.keys():
        theirs = dict(right[repeat])
        found[repeat] = tuple((n, t - theirs[n]) for n, t in left[repeat] if n in theirs)
    return found


def step_curve(requests: Iterable[RequestRecord]) -> Curve:
    """Time of one step by the tokens that it sees: the medians of each octave."""
    octaves: dict[int, list[tuple[int, Seconds]]] = {}
    for request in requests:
        prompt = request.prompt_tokens or request.prompt_tokens_planned
        times = request.chunk_times_s
        for step in range(1, len(times)):
            seen = prompt + step
            octave = octaves.setdefault(seen.bit_length(), [])
            octave.append((seen, times[step] - times[step - 1]))
    return tuple(
        (median(seen for seen, _ in octave), median(gap for _, gap in octave))
        for _, octave in sorted(octaves.items())
    )


def total_curve(requests: Iterable[RequestRecord]) -> Curve:
    """Time from the send to a token, by the tokens seen until then, of the longest generation."""
    longest = max(requests, key=lambda request: len(request.chunk_times_s), default=None)
    if longest is None or len(longest.chunk_times_s) < MIN_GENERATION:
        return ()
    times = longest.chunk_times_s
    prompt = longest.prompt_tokens or longest.prompt_tokens_planned
    counts = (round(len(times) / 2 ** (back / 2)) for back in reversed(range(TOTAL_POINTS)))
    return tuple((float(prompt + n - 1), times[n - 1] - longest.sent_s) for n in counts)


# ── fits ────────────────────────────────────────────────────────────────────────────────────


def growth(curves: Mapping[int, Curve]) -> TimeGrowth:
    """The median of the launches' curves, and the exponent over the last factor of eight."""
    lengths = sorted({n for curve in curves.values() for n, _ in curve})
    values = {n: [t for curve in curves.values() for m, t in curve if m == n] for n in lengths}
    middle = tuple((n, median(times)) for n, times in values.items())
    fitted = {repeat: part for repeat, curve in curves.items() if (part := _long_part(curve))}
    return TimeGrowth(middle, _fit(list(fitted.values())) if fitted else None)


def _long_part(curve: Curve) -> Curve:
    """The points that an exponent is fitted on; empty where they don't carry one."""
    last = curve[-1][0] if curve else 0.0
    part = tuple((n, t) for n, t in curve if n >= last / FIT_SPAN and t > 0.0)
    if len(part) < MIN_POINTS or part[-1][0] / part[0][0] < MIN_SPAN:
        return ()
    return part


def _fit(curves: Sequence[Curve]) -> PowerFit:
    slopes = [log_slope(curve) for curve in curves]
    first = curves[0]
    span = (len(first), first[0][0], first[-1][0])
    if len(slopes) < MIN_REPLICATES:
        reason = f"no interval: {len(slopes)} of the {MIN_REPLICATES} launches that one needs"
        return PowerFit(fmean(slopes), None, None, len(slopes), *span, reason)
    spread = stdev(slopes) / math.sqrt(len(slopes))
    half = t_quantile((1.0 + CONFIDENCE) / 2.0, len(slopes) - 1) * spread
    centre = fmean(slopes)
    return PowerFit(centre, centre - half, centre + half, len(slopes), *span)


def log_slope(curve: Curve) -> float:
    """Least squares of log time on log length: the exponent of a power law.

    Raises:
        ValueError: fewer than two lengths.
    """
    exponent, _ = least_squares(
        [math.log(length) for length, _ in curve], [math.log(time_s) for _, time_s in curve]
    )
    return exponent


# ── bytes and counts ────────────────────────────────────────────────────────────────────────


def _held(trials: Sequence[TrialRecord], rate: float | None) -> tuple[CacheBytes, ...]:
    found: dict[str, CacheBytes] = {}
    for trial in trials:
        label = _label(trial)
        if label in found or not trial.cache_samples:
            continue
        last = max(trial.cache_samples, key=lambda sample: sample.sequence_tokens)
        needed = None if rate is None else round(last.sequence_tokens * rate)
        found[label] = CacheBytes(label, last.sequence_tokens, last.allocated_bytes, needed)
    return tuple(found.values())


def _label(trial: TrialRecord) -> str:
    return str(trial.run.trial.workload.get("label") or trial.run.trial.trial_id)


def _bytes_per_token(trial: TrialRecord) -> float | None:
    """Theory: bytes that one token stores in all layers, in the dtype that was asked for."""
    facts = trial.run.trial
    if facts.model_config is None:
        return None
    dtype = facts.server_flags.get("dtype")
    device: Literal["cpu", "cuda"] = "cpu" if trial.run.environment.profile == "cpu" else "cuda"
    try:
        model = model_spec(facts.model_config, name=facts.model)
        settings = settings_from_flags({"dtype": dtype} if dtype else {}, device)
        return predict_capacity(model, settings, None).kv_bytes_per_token
    except InputError:
        return None


def _counted(trials: Sequence[TrialRecord]) -> tuple[KvComputations, ...]:
    loads = {_label(trial): trial.run.trial.workload for trial in trials}
    return tuple(_count(label, load) for label, load in loads.items())


def _count(label: str, workload: Mapping[str, object]) -> KvComputations:
    prompt, output = workload.get("context_tokens"), workload.get("output_tokens")
    size = (prompt if isinstance(prompt, int) else 0, output if isinstance(output, int) else 0)
    return KvComputations(
        label, *size, kv_computations(*size, cached=False), kv_computations(*size, cached=True)
    )
