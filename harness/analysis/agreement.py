"""Two servers' views of the same tokens → perplexity, top-1 agreement, divergence, common prefix.

Method: at every kept position both servers listed their likeliest tokens and the one that stands
there. The divergence is taken over a coarser set of outcomes: each token that both listed, and
one outcome each for what only one of them listed and for the rest. Merging outcomes can only lower
a Kullback–Leibler divergence (the data-processing inequality), and where a list is silent the
value that makes the divergence least is taken, so the figure is a lower bound of the true one,
zero for equal lists, and nothing is made up in favour of a difference. Intervals are percentiles
of 2,000 resamplings of whole prompts, since positions of one prompt depend on one another.

Not covered: texts of different prompts or models; the caller pairs what belongs together.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from harness.analysis.latency import P99_NEEDS
from harness.analysis.quality_results import Agreement, Bucket, FreeRunning, Range, Trend
from harness.analysis.stats import CONFIDENCE, percentiles, wilson
from harness.record import QualityAnswer, QualityScore
from harness.units import Tokens

#: Fewer prompts than this give no interval.
MIN_PROMPTS = 5
RESAMPLES = 2000
BUCKETS = 8
#: The likeliest tokens that a server lists at each position (vLLM's ``--max-logprobs``).
TOP_K = 20
#: A probability that rounding alone may leave.
_NOTHING = 1e-12
_TURNS = 60


@dataclass(frozen=True, slots=True)
class Place:
    """One position of one prompt, seen by both servers; logarithms are natural."""

    prompt: int
    position: int
    in_answer: bool
    baseline_logprob: float
    logprob: float
    same_top: bool
    kl: float


def divergence(baseline: Mapping[int, float], other: Mapping[int, float], k: int = TOP_K) -> float:
    """The least KL(baseline ‖ other) in nats that two lists of token → log-probability allow.

    Cells: every token in both lists; what the baseline alone lists (``a``, for the other ``x``);
    what the other alone lists (``d``, for the baseline ``y``); the rest. ``x`` and ``y`` are
    unknown, but no token that a list leaves out is likelier than its k-th. The divergence is
    convex in them, so setting each to its best value in turn leads to the least.
    """
    if baseline == other:
        return 0.0
    shared = baseline.keys() & other.keys()
    kl = sum(math.exp(baseline[t]) * (baseline[t] - other[t]) for t in shared)
    known, other_known = (sum(math.exp(side[t]) for t in shared) for side in (baseline, other))
    a = sum(math.exp(logprob) for token, logprob in baseline.items() if token not in shared)
    d = sum(math.exp(logprob) for token, logprob in other.items() if token not in shared)
    b, e = max(0.0, 1.0 - known - a), max(0.0, 1.0 - other_known - d)
    x_most = min(e, (len(baseline) - len(shared)) * _kth(other, k))
    y_most = min(b, (len(other) - len(shared)) * _kth(baseline, k))
    x, y = x_most / 2.0, y_most / 2.0
    for _ in range(_TURNS):
        before = (x, y)
        x = min(x_most, e * a / (a + b - y)) if a + b - y > 0.0 else 0.0
        y = min(y_most, b * d / (d + e - x)) if d + e - x > 0.0 else 0.0
        if abs(x - before[0]) + abs(y - before[1]) < _NOTHING:
            break
    return max(0.0, kl + _cell(a, x) + _cell(y, d) + _cell(b - y, e - x))


def _kth(listed: Mapping[int, float], k: int) -> float:
    """The probability of the k-th likeliest token; a list may hold one more, less likely."""
    ordered = sorted(listed.values(), reverse=True)
    return math.exp(ordered[min(k, len(ordered)) - 1]) if ordered else 1.0


def _cell(p: float, q: float) -> float:
    """One outcome's part of a divergence: p·ln(p/q)."""
    return p * math.log(p / max(q, _NOTHING)) if p > _NOTHING else 0.0


def paired(reference: Sequence[QualityScore], scores: Sequence[QualityScore]) -> tuple[Place, ...]:
    """The positions that both servers scored, prompt by prompt."""
    base = {score.index: score for score in reference if score.error is None}
    places: list[Place] = []
    for score in scores:
        if score.error is None and score.index in base:
            places += _places(base[score.index], score)
    return tuple(places)


def _places(base: QualityScore, score: QualityScore) -> list[Place]:
    mine = {position: slot for slot, position in enumerate(score.positions)}
    return [
        _place(base, slot, score, mine[position])
        for slot, position in enumerate(base.positions)
        if position in mine
    ]


def _place(base: QualityScore, slot: int, score: QualityScore, other_slot: int) -> Place:
    ids, other_ids = base.top_ids[slot], score.top_ids[other_slot]
    return Place(
        prompt=base.index,
        position=base.positions[slot],
        in_answer=base.positions[slot] >= base.prompt_length,
        baseline_logprob=base.logprobs[slot],
        logprob=score.logprobs[other_slot],
        same_top=ids[:1] == other_ids[:1],
        kl=divergence(
            dict(zip(ids, base.top_logprobs[slot], strict=True)),
            dict(zip(other_ids, score.top_logprobs[other_slot], strict=True)),
        ),
    )


def agreement(places: Sequence[Place]) -> Agreement | None:
    """Pool positions into figures; None where there are none."""
    if not places:
        return None
    divergences = [place.kl for place in places]
    return Agreement(
        prompts=len({place.prompt for place in places}),
        positions=len(places),
        perplexity=_perplexity([place.logprob for place in places]),
        baseline_perplexity=_perplexity([place.baseline_logprob for place in places]),
        top1_agreement=fmean(place.same_top for place in places),
        kl=mean_range(by_prompt(places)),
        kl_p99=percentiles(divergences, (0.99,))[0] if len(places) >= P99_NEEDS else None,
    )


def _perplexity(logprobs: Sequence[float]) -> float:
    """exp of the mean negative log-probability per token; capped where a float ends."""
    return math.exp(min(700.0, -fmean(logprobs)))


def by_prompt(places: Sequence[Place]) -> dict[int, tuple[float, int]]:
    """Per prompt: the sum of the divergences and how many they are."""
    sums: dict[int, tuple[float, int]] = {}
    for place in places:
        total, count = sums.get(place.prompt, (0.0, 0))
        sums[place.prompt] = (total + place.kl, count + 1)
    return sums


def mean_range(sums: Mapping[int, tuple[float, int]]) -> Range:
    """The mean over all positions, with the interval of resampled prompts."""
    clusters = list(sums.values())
    low, high = _resampled(clusters)
    return Range(_ratio(clusters), low, high)


def excess(
    sums: Mapping[int, tuple[float, int]], floor: Mapping[int, tuple[float, int]]
) -> Range | None:
    """By how much a mean divergence exceeds the noise floor's, over the prompts of both."""
    both = sorted(sums.keys() & floor.keys())
    if not both:
        return None
    clusters = [(sums[k][0] / sums[k][1] - floor[k][0] / floor[k][1], 1) for k in both]
    low, high = _resampled(clusters)
    return Range(_ratio(clusters), low, high)


def _ratio(clusters: Sequence[tuple[float, int]]) -> float:
    return sum(total for total, _ in clusters) / sum(count for _, count in clusters)


def _resampled(clusters: Sequence[tuple[float, int]]) -> tuple[float | None, float | None]:
    if len(clusters) < MIN_PROMPTS:
        return None, None
    dice = random.Random("kvbench")  # noqa: S311 - the same interval at every read
    draws = [_ratio(dice.choices(clusters, k=len(clusters))) for _ in range(RESAMPLES)]
    tail = (1.0 - CONFIDENCE) / 2.0
    low, high = percentiles(draws, (tail, 1.0 - tail))
    return low, high


def buckets(places: Sequence[Place], count: int = BUCKETS) -> tuple[Bucket, ...]:
    """Divergence and agreement along the context, in equal stretches up to its longest."""
    if not places:
        return ()
    length = max(place.position for place in places) + 1
    width = -(-length // count)
    return tuple(
        _bucket(start, min(start + width, length), places) for start in range(0, length, width)
    )


def _bucket(start: Tokens, end: Tokens, places: Sequence[Place]) -> Bucket:
    inside = [place for place in places if start <= place.position < end]
    return Bucket(
        start=start,
        end=end,
        positions=len(inside),
        kl_mean=fmean(place.kl for place in inside) if inside else None,
        top1_agreement=fmean(place.same_top for place in inside) if inside else None,
    )


def trend(places: Sequence[Place]) -> Trend:
    """Whether the divergence grows along the context: second half against first, by prompt.

    The first stretch (of ``BUCKETS``) is left out: the first tokens of a text have next to no
    context, diverge most, and would make a fall of every trend. So is the answer: the tokens that
    a model chose itself are easier than a text's.
    """
    halves: dict[int, tuple[list[float], list[float]]] = {}
    longest: dict[int, int] = {}
    context = [place for place in places if not place.in_answer]
    for place in context:
        longest[place.prompt] = max(longest.get(place.prompt, 0), place.position)
    for place in context:
        length = longest[place.prompt]
        if place.position > length / BUCKETS:
            later = place.position > length / 2
            halves.setdefault(place.prompt, ([], []))[later].append(place.kl)
    clusters = [
        (fmean(late) - fmean(early), 1) for early, late in halves.values() if early and late
    ]
    if not clusters:
        return "unknown"
    low, high = _resampled(clusters)
    if low is None or high is None:
        return "unknown"
    if low > 0.0:
        return "grows"
    return "falls" if high < 0.0 else "no trend shown"


def free_running(
    reference: Sequence[QualityAnswer], answers: Sequence[QualityAnswer]
) -> FreeRunning | None:
    """Hold free answers against the baseline's; answers without token ids are left out."""
    base = {a.index: a.token_ids for a in reference if a.error is None and a.token_ids is not None}
    pairs = [
        (base[a.index] or (), a.token_ids)
        for a in answers
        if a.error is None and a.token_ids is not None and a.index in base
    ]
    if not pairs:
        return None
    prefixes = [common_prefix(one, other) for one, other in pairs]
    same = [one == other for one, other in pairs]
    shares = [
        length / max(len(one), len(other), 1) if one or other else 1.0
        for length, (one, other) in zip(prefixes, pairs, strict=True)
    ]
    return FreeRunning(
        prompts=len(pairs),
        exact_matches=sum(same),
        exact_match=Range(sum(same) / len(pairs), *wilson(sum(same), len(pairs))),
        common_prefix_mean=fmean(prefixes),
        common_prefix_fraction=fmean(shares),
    )


def common_prefix(one: Sequence[int], other: Sequence[int]) -> Tokens:
    """How many tokens two answers begin with in common."""
    for place, (left, right) in enumerate(zip(one, other, strict=False)):
        if left != right:
            return place
    return min(len(one), len(other))
