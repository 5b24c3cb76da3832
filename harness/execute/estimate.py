"""How long a scenario will take, and what that estimate rests on.

Method: the last finished run of the same scenario and profile gives the start-up time per launch
and the load time of each workload it shares with this one. What no run has measured is worked
out from a start-up time and two token rates per profile; those are assumptions, and said to be.
Variants of which it is known before any start that they will be skipped take no time. Not covered:
refusals that only the engine knows of, and answers that differ from the baseline's so seldom that
the judge has less to do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from harness.errors import KvbenchError
from harness.execute import kvpress_trials
from harness.execute.quality import is_asked
from harness.execute.strategies import refusal
from harness.quality.judge import JUDGE_CONCURRENCY, PASSAGE_CHARACTERS
from harness.record import ATTACHED, BenchRecord, Run
from harness.scenario import Quality, Scenario, Trial, Workload, expand, launch_groups, slugify
from harness.scenario.load import NEEDLE_ANSWER_TOKENS
from harness.store import read_manifest, read_run, runs_of
from harness.theory.recompute import kv_computations
from harness.units import Seconds, Tokens, counted, format_duration
from harness.workload.judge_pairs import CONTROL_KINDS, ORDERS, controls_of_a_kind
from harness.workload.lengths import request_lengths, turn_length


@dataclass(frozen=True, slots=True)
class Rates:
    """What an unmeasured machine is taken to do; ``decode`` saturates at ``decode_max_per_s``."""

    startup_s: Seconds
    stop_s: Seconds
    prefill_tokens_per_s: float
    decode_tokens_per_s_per_stream: float
    decode_max_per_s: float
    basis: str


#: The CPU figures are round numbers from runs of the embedded model on two cores; the CUDA
#: figures are round numbers for an 8B model on one data-centre GPU, not from any measurement.
ASSUMED = {
    "cpu": Rates(35.0, 5.0, 600.0, 25.0, 130.0, "2 CPU cores, the embedded 135M model"),
    "cuda": Rates(120.0, 15.0, 8000.0, 60.0, 3000.0, "one data-centre GPU, an 8B model"),
}


#: A named judge's time for one verdict, several being asked for at once; an assumption.
_NAMED_VERDICT_S: Seconds = 2.0
#: Round numbers from the embedded model's own judging: its instructions, a verdict with its reason.
_JUDGE_INSTRUCTIONS: Tokens = 100
_VERDICT: Tokens = 50
#: English has four to five.
_CHARACTERS_PER_TOKEN = 4

#: Start and stop of the reference engine, which loads a model and no more.
_REFERENCE_LAUNCH: tuple[Seconds, Seconds] = (8.0, 1.0)


@dataclass(frozen=True, slots=True)
class Estimate:
    """Predicted wall time of a bench, and the sentence that says what it rests on.

    ``launches`` and ``trials`` are those that will run, ``skipped`` the variants of which it is
    known that none will, ``skips`` the number of their trials. ``launches`` is None for a
    server that is running already; ``quality_s`` is the part of the total that questions about
    quality take, ``judge_s`` that of the judge in it where it is not measured together with
    them.
    """

    total_s: Seconds
    launches: int | None
    trials: int
    basis: str
    quality_s: Seconds = 0.0
    judge_s: Seconds | None = None
    skipped: tuple[str, ...] = ()
    skips: int = 0


def estimate(scenario: Scenario, root: Path) -> Estimate:
    """Estimate the wall time of a scenario from stored runs, else from assumed rates."""
    trials = expand(scenario)
    played = [trial for trial in trials if not _refused(trial, scenario)]
    playing = {trial.variant for trial in played}
    rates = ASSUMED[scenario.profile]
    earlier = _last_finished(root, scenario)
    launches = 0 if scenario.attach else len(launch_groups(played))
    launch = _measured_launch(earlier)
    assumed = (rates.startup_s, rates.stop_s)
    start_s, stop_s = launch or (_REFERENCE_LAUNCH if scenario.engine == "reference" else assumed)
    measured = _measured_loads(earlier)
    loads = [measured.get(_key(trial)) for trial in played]
    load_s = sum(
        _assumed_s(trial, rates) if known is None else known
        for trial, known in zip(played, loads, strict=True)
    )
    quality_s = asked_s = _measured_quality_s(scenario, earlier)
    judge_s = None
    if quality_s is None:
        judge_s = assumed_judge_s(scenario, played, rates)
        quality_s = assumed_questions_s(scenario, played, rates) + (judge_s or 0.0)
    parts = (
        _Part("starts of servers", launches, launches if launch is not None else 0),
        _Part(f"{{}} of {counted(len(played), 'trial')}", len(played), _known(loads)),
        _Part("questions of quality", scenario.quality is not None, asked_s is not None),
    )
    return Estimate(
        total_s=launches * (start_s + stop_s) + load_s + quality_s,
        launches=None if scenario.attach else launches,
        trials=len(played),
        basis=_basis(earlier[0].run_id if earlier is not None else None, parts, rates),
        quality_s=quality_s,
        judge_s=judge_s,
        skips=len(trials) - len(played),
        skipped=tuple(dict.fromkeys(t.variant for t in trials if t.variant not in playing)),
    )


def _known(values: Sequence[Seconds | None]) -> int:
    return sum(value is not None for value in values)


@dataclass(frozen=True, slots=True)
class _Part:
    """What goes into the sum: how many of it, and how many of these an earlier run told."""

    name: str
    count: int
    told: int


def _refused(trial: Trial, scenario: Scenario) -> bool:
    if trial.engine == "kvpress":
        return kvpress_trials.refusal(scenario) is not None
    return refusal(trial, scenario.profile) is not None


def _measured_quality_s(
    scenario: Scenario, earlier: tuple[BenchRecord, Sequence[Run]] | None
) -> Seconds | None:
    """The time that the same questions about quality took last time; None if nobody knows."""
    if scenario.quality is None or earlier is None:
        return None
    same = earlier[0].scenario.get("quality") == scenario.quality.model_dump(mode="json")
    return earlier[0].quality_s if same else None


def assumed_questions_s(scenario: Scenario, played: Sequence[Trial], rates: Rates) -> Seconds:
    """One pass per variant and two of the baseline: every prompt answered, then scored again."""
    quality = scenario.quality
    passes = _passes(scenario, played)
    if quality is None or not passes:
        return 0.0
    decode = rates.decode_tokens_per_s_per_stream
    task_s = 2 * _context(scenario, quality) / rates.prefill_tokens_per_s
    task_s += quality.answer_tokens / decode
    grid = quality.needles
    cells = 2 * len(grid.depths) * grid.per_cell if grid is not None else 0
    needles_s = sum(
        cells * (length / rates.prefill_tokens_per_s + NEEDLE_ANSWER_TOKENS / decode)
        for length in (grid.context_tokens if grid is not None else ())
    )
    return passes * (quality.num_prompts * task_s + needles_s)


def _passes(scenario: Scenario, played: Sequence[Trial]) -> int:
    """How often all is asked: never without the baseline, on whose answers others are scored."""
    asked = {trial.variant for trial in played if is_asked(scenario, trial)}
    return len(asked) + 1 if scenario.baseline in asked else 0


def assumed_judge_s(scenario: Scenario, played: Sequence[Trial], rates: Rates) -> Seconds | None:
    """Time of the judge if every pair of answers differs; None where nobody judges.

    The baseline's own server judges at a launch after the variants', so not with one repeat. Of a
    named judge only the number of questions is known: it is taken to answer one in some seconds.
    """
    quality = scenario.quality
    if quality is None or quality.judge is None:
        return None
    named = quality.judge.url is not None
    variants = _passes(scenario, played) - 2
    if variants < 1 or not (named or scenario.repeats > 1):
        return None
    pairs = variants * quality.num_prompts
    count = len(ORDERS) * (pairs + CONTROL_KINDS * controls_of_a_kind(pairs))
    if named:
        return count * _NAMED_VERDICT_S / JUDGE_CONCURRENCY
    streams_per_s = JUDGE_CONCURRENCY * rates.decode_tokens_per_s_per_stream
    decode = min(streams_per_s, rates.decode_max_per_s)
    passage = min(_context(scenario, quality), PASSAGE_CHARACTERS // _CHARACTERS_PER_TOKEN)
    prompt = _JUDGE_INSTRUCTIONS + passage + 2 * quality.answer_tokens
    return count * (prompt / rates.prefill_tokens_per_s + _VERDICT / decode)


def _context(scenario: Scenario, quality: Quality) -> Tokens:
    return quality.context_tokens or scenario.workloads[0].context_tokens


def _assumed_s(trial: Trial, rates: Rates) -> Seconds:
    if trial.engine == "kvpress":
        # A whole prompt goes through the model, its tail behind the rest.
        size = trial.workload.total_tokens * trial.workload.num_prompts
        return size / rates.prefill_tokens_per_s
    if trial.engine == "vllm" or trial.flags.get("cache") != "none":
        return assumed_load_s(trial.workload, rates)
    prompt, output = trial.workload.context_tokens, trial.workload.output_tokens
    count = trial.workload.num_prompts + trial.workload.warmup_requests
    positions = kv_computations(prompt, output, cached=False)
    return count * positions / rates.prefill_tokens_per_s


def assumed_load_s(workload: Workload, rates: Rates) -> Seconds:
    """Prefill and decode one after the other, or the arrival times if those last longer."""
    streams = min(workload.concurrency or 16, workload.num_prompts)
    decode = min(streams * rates.decode_tokens_per_s_per_stream, rates.decode_max_per_s)
    prompts, outputs = _tokens_to_do(workload)
    work_s = prompts / rates.prefill_tokens_per_s + outputs / decode
    if workload.request_rate is None:
        return work_s
    return max(work_s, workload.num_prompts / workload.request_rate)


def _tokens_to_do(workload: Workload) -> tuple[float, float]:
    """Prompt and output tokens of all requests, warm-ups too; nothing is taken to be cached."""
    count = workload.num_prompts + workload.warmup_requests
    lengths = request_lengths(workload, count, seed=0)
    prompts = sum(prompt for prompt, _ in lengths)
    if workload.turns:
        per_turn = [turn_length(workload, turn) for turn in range(workload.turns)]
        prompts = round(count * fmean(per_turn))
    return prompts, sum(output for _, output in lengths)


def _last_finished(root: Path, scenario: Scenario) -> tuple[BenchRecord, list[Run]] | None:
    for folder in reversed(runs_of(root, slugify(scenario.name))):
        try:
            bench = read_manifest(folder)
            if bench.status != "finished" or not _measured_alike(bench, scenario):
                continue
            return bench, [
                run for run in (read_run(folder, t) for t in bench.trial_ids) if run is not None
            ]
        except KvbenchError:
            continue
    return None


def _measured_alike(bench: BenchRecord, scenario: Scenario) -> bool:
    """Same device and server: what an attached server did says nothing of those launched here."""
    profile = ATTACHED if scenario.attach is not None else scenario.profile
    return (
        bench.environment.profile == profile
        and bench.scenario.get("attach") == scenario.attach
        and (bench.scenario.get("engine") or "vllm") == scenario.engine
        and (scenario.attach is not None or bench.scenario.get("model") == scenario.model)
    )


def _key(trial: Trial) -> tuple[str, str]:
    return trial.variant, trial.workload.label


def _measured_loads(
    earlier: tuple[BenchRecord, Sequence[Run]] | None,
) -> Mapping[tuple[str, str], Seconds]:
    if earlier is None:
        return {}
    spans: dict[tuple[str, str], list[Seconds]] = {}
    for run in earlier[1]:
        if run.status == "sealed" and run.load_end_s is not None:
            key = (run.trial.variant, str(run.trial.workload.get("label")))
            spans.setdefault(key, []).append(run.load_end_s)
    return {key: fmean(values) for key, values in spans.items()}


def _measured_launch(
    earlier: tuple[BenchRecord, Sequence[Run]] | None,
) -> tuple[Seconds, Seconds] | None:
    if earlier is None:
        return None
    bench, runs = earlier
    launches = len({run.trial.launch for run in runs if run.server is not None})
    if launches == 0 or bench.server_startup_s is None or bench.server_stop_s is None:
        return None
    return bench.server_startup_s / launches, bench.server_stop_s / launches


def _basis(run_id: str | None, parts: Sequence[_Part], rates: Rates) -> str:
    """What the estimate rests on: an earlier run, for what it told, and assumed rates."""
    assumed = (
        f"assumed rates ({rates.basis}: start {format_duration(rates.startup_s)}, prefill "
        f"{rates.prefill_tokens_per_s:,.0f} tokens/s, decode up to {rates.decode_max_per_s:,.0f} "
        "tokens/s)"
    )
    told = [part.name.format(part.told) for part in parts if part.count and part.told]
    if run_id is None or not told:
        return f"{assumed}; no earlier run like this one is stored here"
    if all(part.told >= part.count for part in parts):
        return f"the run {run_id} on this profile"
    return f"the run {run_id} for {', '.join(told)}, else {assumed}"
