"""The page's section on answer quality: agreement against the noise floor, needles, judge, gate.

Method: grids and charts of what ``analysis.quality`` says, in the words of ``quality_text``; the
baseline against itself is a row like any other, so that every figure stands beside the noise.
Not covered: what the opening says of it (``sentence``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from harness.analysis.quality_results import (
    Agreement,
    JudgeOutcome,
    QualityAnalysis,
    Retrieval,
    SanityGate,
    VariantQuality,
)
from harness.analysis.results import Analysis
from harness.analysis.retrieval import NEEDLE_TASKS
from harness.record import BenchRecord, TrialRecord
from harness.report.charts import Chart
from harness.report.charts import quality as quality_charts
from harness.report.places import places
from harness.report.quality_text import (
    KINDS,
    NOT_YET_WORSE,
    best_judge,
    judge_name,
    judge_sentences,
    kl_text,
    lead_sentence,
    share_text,
    standing_sentence,
)
from harness.report.section_parts import Grid, Section
from harness.units import (
    DASH,
    Tokens,
    counted,
    format_count,
    format_percent,
    format_significant,
)
from harness.workload.corpus import PASSAGES

_NAMES = {"needle": "one needle", "multikey": "one of four keys"}


def section(
    bench: BenchRecord, _trials: Sequence[TrialRecord], analysis: Analysis
) -> Section | None:
    """The section of this run, if answers were asked for."""
    quality = analysis.quality
    if quality is None:
        return None
    return Section(
        anchor="quality",
        title="Answer quality",
        lead=lead_sentence(quality),
        claims=("C11",) if "C11" in (bench.scenario.get("claims") or ()) else (),
        theory=_theory(analysis),
        measured=tuple(_measured(bench, quality)),
        grids=tuple(_grids(quality)),
        charts=tuple(_charts(analysis, quality)),
        not_covered=(
            "Tasks, languages and contexts other than those asked; "
            f"{counted(quality.prompts, 'prompt')} can't show a loss that is rare. Answers that "
            "are wrong and well formed show in agreement, needles and judge alone."
        ),
    )


def _theory(analysis: Analysis) -> str:
    """What could change the text: fewer bits where a dtype differs, else whatever was changed."""
    fewer_bits = len({kv.kv_cache_dtype for kv in analysis.kv}) > 1
    cause = (
        "Fewer bits per key and value leave each attention score with an error"
        if fewer_bits
        else "Keys and values that are left out, or stored otherwise, change what attention sums up"
    )
    return (
        f"{cause}; whether that reaches the text is measured here, against what the baseline "
        "differs from itself."
    )


def _measured(bench: BenchRecord, quality: QualityAnalysis) -> Iterator[str]:
    yield _asked(bench, quality)
    if quality.baseline_gate is not None and not quality.baseline_gate.passed:
        reasons = "; ".join(quality.baseline_gate.reasons)
        yield (
            f"{quality.baseline}'s own text fails the sanity gate: {reasons}. Answers that agree "
            "with it are worth no more."
        )
    for one in quality.variants:
        if one.kind == "variant":
            trend = "" if one.standing == "broken" else _trend(one)
            yield f"{one.variant}: {standing_sentence(one, quality)}{trend}"
    if any(one.standing == "differs" for one in quality.variants):
        yield NOT_YET_WORSE
    yield _floor(bench, quality)
    judges = sorted(quality.judges, key=lambda j: j is not best_judge(quality))
    for judge in judges:
        yield " ".join(judge_sentences(judge, with_controls=False))
    if not judges:
        yield (
            "No judge was asked. `kvbench judge RUN --judge-url … --judge-model …` has the stored "
            "answers judged without running anything again."
        )
    if quality.textless:
        yield (
            f"Not applicable to {', '.join(quality.textless)}: no checkpoint has the overridden "
            "shape, and random weights (load_format: dummy) write no text."
        )
    if quality.left_out:
        count = len(quality.left_out)
        yield f"{counted(count, 'prompt')} left out: {'; '.join(quality.left_out[:5])}."


def _asked(bench: BenchRecord, quality: QualityAnalysis) -> str:
    """What was asked, so that a few prompts are never taken for the whole set."""
    asked = bench.scenario.get("quality")
    wanted = asked if isinstance(asked, Mapping) else {}
    tasks = {task: n for task, n in quality.tasks.items() if task not in NEEDLE_TASKS}
    if "user" in tasks:
        told = f"{counted(quality.prompts, 'prompt')} of {wanted.get('prompts') or 'a file'}"
    else:
        kinds = ", ".join(f"{n} {task}" for task, n in tasks.items())
        shipped = f"the {PASSAGES} that ship"
        again = "" if quality.prompts <= PASSAGES else ", some texts asked about more than once"
        told = f"{counted(quality.prompts, 'prompt')} of {shipped}{again} ({kinds})"
    length, answer = wanted.get("context_tokens") or _length(bench), wanted.get("answer_tokens")
    ours = "user" not in tasks and isinstance(length, int)
    told += f", {format_count(length)} tokens each" if ours else ""
    told += f", answers of at most {format_count(answer)}" if isinstance(answer, int) else ""
    needles = sum(quality.tasks.get(task, 0) for task in NEEDLE_TASKS)
    told += f"; {counted(needles, 'needle')}" if needles else ""
    return f"Asked: {told}."


def _trend(one: VariantQuality) -> str:
    return {
        "grows": " The divergence grows along the context.",
        "falls": " The divergence falls along the context.",
        "no trend shown": " No trend of the divergence along the context is shown.",
    }.get(one.trend, "")


def _length(bench: BenchRecord) -> int | None:
    """As long as the first workload's prompts, where the scenario does not say."""
    workloads: Any = bench.scenario.get("workloads") or ({},)
    length = workloads[0].get("context_tokens")
    return length if isinstance(length, int) else None


def _floor(bench: BenchRecord, quality: QualityAnalysis) -> str:
    floor = quality.floor
    if floor is None or floor.status != "sealed":
        why = floor.reason if floor is not None else "the baseline was not asked a second time"
        return f"No noise floor: {why}. Nothing is called a difference."
    restarted = quality.floor_restarted and bench.scenario.get("attach") is None
    other = "another server start" if restarted else "the same server start"
    kl = kl_text(floor.on_answers.kl if floor.on_answers is not None else None)
    same = (
        f"; {floor.free.exact_matches} of {floor.free.prompts} answers word for word alike"
        if floor.free is not None
        else ""
    )
    return (
        f"Noise floor, {quality.baseline} against itself ({other}, reversed order, "
        f"{floor.concurrency} at once): KL {kl} nats per token{same}."
    )


# ── tables ──────────────────────────────────────────────────────────────────────────────────


def _grids(quality: QualityAnalysis) -> Iterator[Grid]:
    rows = [(_name(one, quality), one) for one in quality.variants]
    if rows:
        yield _agreement_grid(rows, quality)
        yield _answers_grid(rows, quality)
        yield _gate_grid(rows, quality)
    judges = [judge for judge in quality.judges if judge.status == "sealed"]
    if judges:
        yield _judge_grid(judges)


def _name(one: VariantQuality, quality: QualityAnalysis) -> str:
    return f"{quality.baseline} again (noise floor)" if one.kind == "self" else one.variant


def _agreement_grid(rows: Sequence[tuple[str, VariantQuality]], quality: QualityAnalysis) -> Grid:
    base = quality.baseline
    return Grid(
        f"The same tokens scored by every server, {counted(quality.prompts, 'prompt')}: KL from "
        f"{base} in nats per token (a lower bound), perplexity {base} → server. The answers are "
        f"{base}'s own, so every other server finds them less likely.",
        (
            "server",
            "KL on answers [95 %]",
            "p99",
            "KL on texts [95 %]",
            "same likeliest token",
            "perplexity of answers",
            "perplexity of texts",
        ),
        tuple(
            (
                name,
                kl_text(one.on_answers.kl if one.on_answers else None),
                format_significant(one.on_answers.kl_p99 if one.on_answers else None),
                kl_text(one.on_context.kl if one.on_context else None),
                format_percent(one.on_answers.top1_agreement if one.on_answers else None),
                _perplexity(one.on_answers),
                _perplexity(one.on_context),
            )
            for name, one in rows
        ),
        numeric=frozenset(range(1, 7)),
    )


def _answers_grid(rows: Sequence[tuple[str, VariantQuality]], quality: QualityAnalysis) -> Grid:
    """What each server answered by itself, beside the baseline's answers and the right ones."""
    return Grid(
        f"Answers of each server's own beside {quality.baseline}'s, and beside what is right",
        (
            "server",
            "same answer [95 %]",
            "common beginning",
            "needles found",
            "questions right",
        ),
        (
            (quality.baseline, DASH, DASH, *_found(quality.baseline_retrieval)),
            *(
                (
                    name,
                    share_text(one.free.exact_match if one.free else None),
                    _prefix(one),
                    *_found(one.retrieval),
                )
                for name, one in rows
            ),
        ),
        numeric=frozenset(range(1, 5)),
    )


def _perplexity(one: Agreement | None) -> str:
    if one is None:
        return DASH
    return f"{format_count(one.baseline_perplexity, 2)} → {format_count(one.perplexity, 2)}"


def _prefix(one: VariantQuality) -> str:
    if one.free is None:
        return DASH
    share = format_percent(one.free.common_prefix_fraction, 0)
    return f"{format_count(one.free.common_prefix_mean, 1)} tokens ({share})"


def _gate_grid(rows: Sequence[tuple[str, VariantQuality]], quality: QualityAnalysis) -> Grid:
    return Grid(
        "Sanity gate: is it text at all?",
        ("server", "empty answers", "collapsed answers", "gate", "standing"),
        (
            (quality.baseline, *_gate(quality.baseline_gate), "baseline"),
            *(
                (name, *_gate(one.gate), "noise floor" if one.kind == "self" else one.standing)
                for name, one in rows
            ),
        ),
        numeric=frozenset((1, 2)),
    )


def _gate(gate: SanityGate | None) -> tuple[str, str, str]:
    if gate is None:
        return DASH, DASH, DASH
    empty, collapsed = (format_percent(s, 0) for s in (gate.empty_share, gate.collapsed_share))
    return empty, collapsed, "passed" if gate.passed else "FAILED"


def _found(found: Retrieval | None) -> tuple[str, str]:
    if found is None:
        return DASH, DASH
    needles = f"{found.needles_right} of {found.needles_asked}" if found.needles_asked else DASH
    asked = found.questions_asked
    return needles, f"{found.questions_right} of {asked}" if asked else DASH


def _judge_grid(judges: Sequence[JudgeOutcome]) -> Grid:
    return Grid(
        "Judges and their controls (right in both orders)",
        ("judge", *KINDS.values(), "position bias", "malformed replies", "tokens", "verdict"),
        tuple(
            (
                "the baseline's own server" if judge.is_self else judge_name(judge),
                *(f"{c.right} of {c.asked}" for c in judge.controls),
                share_text(judge.position_bias),
                format_count(judge.malformed),
                format_count(_judge_tokens(judge)),
                "reliable" if judge.reliable else "not reliable: withheld",
            )
            for judge in judges
        ),
        numeric=frozenset(range(1, 7)),
    )


def _judge_tokens(judge: JudgeOutcome) -> Tokens | None:
    """All tokens that a judge took; a part of them is no total."""
    if judge.prompt_tokens is None or judge.output_tokens is None:
        return None
    return judge.prompt_tokens + judge.output_tokens


# ── charts ──────────────────────────────────────────────────────────────────────────────────


def _charts(analysis: Analysis, quality: QualityAnalysis) -> Iterator[Chart]:
    drawn = _drawn(quality)
    lines = tuple(_line(analysis, quality, one) for one in drawn)
    if lines:
        yield Chart(
            "quality-kl-by-position",
            _position_title(quality),
            "Lower is closer to the baseline. Each mark is the mean over a stretch of prompt and "
            "answer, all prompts together; the dashed grey line is the baseline against itself. "
            "The last stretch holds the baseline's answers too, which are text of another kind: "
            "whether the divergence grows is told from the prompts alone, second half against "
            "first, without the first stretch, where a text has hardly any context yet."
            + _off_scale(quality, drawn),
            "; ".join(_line_alt(line) for line in lines),
            lambda: quality_charts.by_position(lines),
        )
    maps = tuple(_maps(quality))
    if maps:
        yield Chart(
            "quality-needles",
            _needle_title(quality),
            "A cell is a context length and the depth at which the needle stands in it (0 %: the "
            "beginning); dark is found. With four keys in the text one is asked for.",
            "; ".join(_map_alt(one) for one in maps),
            lambda: quality_charts.needles(maps, len(maps) // len({m.task for m in maps})),
        )


def _drawn(quality: QualityAnalysis) -> list[VariantQuality]:
    """Whose divergence is drawn: not that of broken text, which would flatten all others."""
    known = [one for one in quality.variants if one.by_position]
    sound = [one for one in known if one.standing != "broken"]
    return sound if any(one.kind == "variant" for one in sound) else known


def _off_scale(quality: QualityAnalysis, drawn: Sequence[VariantQuality]) -> str:
    left = [
        f"{one.variant} ({format_significant(one.on_context.kl.value)} nats per token)"
        for one in quality.variants
        if one.by_position and one not in drawn and one.on_context is not None
    ]
    return f" Off the scale, and left out: {', '.join(left)}." if left else ""


def _line(analysis: Analysis, quality: QualityAnalysis, one: VariantQuality) -> quality_charts.Line:
    known = [b for b in one.by_position if b.kl_mean is not None]
    return quality_charts.Line(
        label=_name(one, quality),
        place=places(analysis)[one.variant],
        is_floor=one.kind == "self",
        positions=tuple((b.start + b.end) / 2 for b in known),
        values=tuple(b.kl_mean or 0.0 for b in known),
    )


def _line_alt(line: quality_charts.Line) -> str:
    points = ", ".join(
        f"{format_significant(value)} at {format_count(position)}"
        for position, value in zip(line.positions, line.values, strict=True)
    )
    return f"{line.label}: {points}"


def _position_title(quality: QualityAnalysis) -> str:
    drawn = [one for one in _drawn(quality) if one.kind == "variant"]
    trends = {one.trend for one in drawn}
    if "grows" in trends:
        names = [one.variant for one in drawn if one.trend == "grows"]
        named = ", ".join(names)
        return f"The divergence of {named} from {quality.baseline} grows along the context"
    if trends == {"falls"}:
        return f"The divergence from {quality.baseline} falls along the context"
    if trends == {"no trend shown"}:
        return f"No trend of the divergence from {quality.baseline} along the context is shown"
    return f"Divergence from {quality.baseline} along the context"


def _needle_title(quality: QualityAnalysis) -> str:
    base = quality.baseline_retrieval
    told = [f"{quality.baseline} {_found(base)[0]}"]
    told += [
        f"{one.variant} {_found(one.retrieval)[0]}"
        for one in quality.variants
        if one.kind == "variant"
    ]
    return f"Needles found: {', '.join(told)}"


def _maps(quality: QualityAnalysis) -> Iterator[quality_charts.HeatMap]:
    sides = [(quality.baseline, quality.baseline_retrieval)]
    sides += [(v.variant, v.retrieval) for v in quality.variants if v.kind == "variant"]
    for task, words in _NAMES.items():
        for name, found in sides:
            if found is not None and any(cell.task == task for cell in found.cells):
                yield _map(name, task, words, found)


def _map(label: str, task: str, kind: str, found: Retrieval) -> quality_charts.HeatMap:
    cells = {(c.depth, c.context_tokens): c for c in found.cells if c.task == task}
    contexts = tuple(sorted({context for _, context in cells}))
    depths = tuple(sorted({depth for depth, _ in cells}))
    return quality_charts.HeatMap(
        label=label,
        task=task,
        kind=kind,
        contexts=contexts,
        depths=depths,
        shares=tuple(
            tuple(
                cells[d, c].right / cells[d, c].asked if (d, c) in cells else None for c in contexts
            )
            for d in depths
        ),
        texts=tuple(
            tuple(
                f"{cells[d, c].right}/{cells[d, c].asked}" if (d, c) in cells else ""
                for c in contexts
            )
            for d in depths
        ),
    )


def _map_alt(one: quality_charts.HeatMap) -> str:
    rows = [
        f"{format_percent(depth, 0)} deep "
        + ", ".join(f"{text} at {context}" for text, context in zip(row, one.contexts, strict=True))
        for depth, row in zip(one.depths, one.texts, strict=True)
    ]
    return f"{one.label}, {one.kind}: {'; '.join(rows)}"
