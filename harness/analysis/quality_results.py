"""What is said about answer quality: the types that report and exports read.

Method: plain frozen values computed anew from the stored answers at every read. Shares are 0–1,
divergences in nats. ``None`` is unknown, never zero. Not covered: how any of it is computed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from harness.units import Fraction, Seconds, Tokens

Trend = Literal["grows", "falls", "no trend shown", "unknown"]
Standing = Literal[
    "broken",
    "differs",
    "indistinguishable",
    "too few prompts",
    "no noise floor",
    "not measured",
]


@dataclass(frozen=True, slots=True)
class Range:
    """A value with its 95 % interval; the ends are None where too little was measured."""

    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True)
class Bucket:
    """A stretch of the context, from ``start`` up to but not including ``end``."""

    start: Tokens
    end: Tokens
    positions: int
    kl_mean: float | None
    top1_agreement: Fraction | None


@dataclass(frozen=True, slots=True)
class Agreement:
    """How alike two servers find the same tokens (``agreement``), pooled over prompts.

    ``kl`` is a lower bound of the mean Kullback–Leibler divergence of the baseline's next-token
    distribution from this server's, in nats per token.
    """

    prompts: int
    positions: int
    perplexity: float
    baseline_perplexity: float
    top1_agreement: Fraction
    kl: Range
    kl_p99: float | None

    @property
    def perplexity_ratio(self) -> float:
        """This server's perplexity over the baseline's."""
        return self.perplexity / self.baseline_perplexity


@dataclass(frozen=True, slots=True)
class FreeRunning:
    """Greedy answers beside the baseline's: token by token until they part."""

    prompts: int
    exact_matches: int
    exact_match: Range
    common_prefix_mean: float
    common_prefix_fraction: Fraction


@dataclass(frozen=True, slots=True)
class GridCell:
    """Needle questions of one kind at one context length and depth."""

    task: str
    context_tokens: Tokens
    depth: Fraction
    asked: int
    right: int


@dataclass(frozen=True, slots=True)
class Retrieval:
    """What was found again: needles by cell, and questions whose answer stands in the text."""

    cells: tuple[GridCell, ...]
    needles_asked: int
    needles_right: int
    questions_asked: int
    questions_right: int


@dataclass(frozen=True, slots=True)
class SanityGate:
    """The sanity gate: whether the text is fit to be called text at all.

    ``reasons`` say why not, each with its evidence; ``scale_warning`` quotes the engine.
    """

    passed: bool
    reasons: tuple[str, ...]
    empty_share: Fraction | None
    collapsed_share: Fraction | None
    scale_warning: str | None = None


@dataclass(frozen=True, slots=True)
class VariantQuality:
    """One server's answers held against the baseline's first ones.

    ``kind`` ``self`` is the baseline against itself. ``on_answers`` covers the baseline's answers,
    ``on_context`` the prompts' text, ``on_tail`` its last quarter. ``kl_excess`` is by how much
    the divergence exceeds that of the baseline against itself, paired by prompt.
    """

    variant: str
    kind: Literal["self", "variant"]
    status: str
    reason: str | None
    launches: tuple[int, ...]
    concurrency: int
    wall_s: Seconds | None
    errors: int
    on_answers: Agreement | None
    on_context: Agreement | None
    by_position: tuple[Bucket, ...]
    trend: Trend
    free: FreeRunning | None
    retrieval: Retrieval | None
    gate: SanityGate | None
    kl_excess: Range | None = None
    standing: Standing = "not measured"
    on_tail: Agreement | None = None


@dataclass(frozen=True, slots=True)
class PolicyQuality:
    """A policy of kvpress on transformers, held against the baseline on the same places.

    ``on_tail`` covers the prompts' last quarter, ``on_answers`` the baseline's answers; both are
    scored behind a compressed prefill. It is another engine's: no gate, no noise floor.
    """

    variant: str
    status: str
    reason: str | None
    on_tail: Agreement | None
    on_answers: Agreement | None


@dataclass(frozen=True, slots=True)
class ControlScore:
    """How a judge did on one kind of control: right in both orders, of those asked."""

    kind: Literal["identical", "degraded", "known"]
    asked: int
    right: int

    @property
    def share(self) -> Fraction | None:
        """The share that it got right; None where nothing was asked."""
        return self.right / self.asked if self.asked else None


@dataclass(frozen=True, slots=True)
class JudgedVariant:
    """One variant's pairs; a win is the variant's. None fields: the verdict is withheld.

    ``identical`` pairs were word for word the same and count as ties without being judged;
    ``unusable`` ones have no verdict in one order at least. ``net`` is (wins − losses) / pairs.
    """

    variant: str
    pairs: int
    identical: int
    unusable: int
    wins: int | None
    ties: int | None
    losses: int | None
    net: Range | None
    non_inferior: bool | None


@dataclass(frozen=True, slots=True)
class JudgeOutcome:
    """One judge, judged first: ``reliable`` decides whether its verdicts are shown.

    ``questions`` were put, ``lost`` of them ended without a verdict.
    """

    judge_id: str
    model: str
    is_self: bool
    status: str
    reason: str | None
    reliable: bool
    unreliable_because: tuple[str, ...]
    controls: tuple[ControlScore, ...]
    position_bias: Range | None
    malformed: int
    questions: int
    lost: int
    prompt_tokens: Tokens | None
    output_tokens: Tokens | None
    wall_s: Seconds | None
    margin: Fraction
    variants: tuple[JudgedVariant, ...]


@dataclass(frozen=True, slots=True)
class QualityAnalysis:
    """Everything that is said of a run's answer quality.

    ``variants`` begin with the baseline against itself, if that was measured.
    ``baseline_retrieval`` and ``baseline_gate`` are what the baseline alone was worth, and
    ``reference_launches`` the server starts at which it answered first. ``textless`` variants are
    reshaped models on random weights: memory and speed are true, there is no text to compare.
    """

    baseline: str
    prompts: int
    tasks: Mapping[str, int]
    context_tokens: tuple[Tokens, ...]
    reference_status: str
    reference_reason: str | None
    baseline_retrieval: Retrieval | None
    baseline_gate: SanityGate | None
    variants: tuple[VariantQuality, ...]
    judges: tuple[JudgeOutcome, ...]
    left_out: tuple[str, ...]
    methods: Mapping[str, str]
    reference_launches: tuple[int, ...] = ()
    pressed: tuple[PolicyQuality, ...] = ()
    textless: tuple[str, ...] = ()

    @property
    def floor_restarted(self) -> bool:
        """Whether the baseline was started anew before it answered a second time."""
        floor = self.floor
        return floor is not None and not set(floor.launches) <= set(self.reference_launches)

    @property
    def floor(self) -> VariantQuality | None:
        """The baseline against itself."""
        return next((one for one in self.variants if one.kind == "self"), None)

    def of(self, variant: str) -> VariantQuality | None:
        """What was measured of a variant."""
        found = (one for one in self.variants if one.variant == variant and one.kind == "variant")
        return next(found, None)
