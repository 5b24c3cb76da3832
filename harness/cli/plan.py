"""``kvbench plan``: every trial with its command line and predicted KV; launches nothing."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from harness.cli import scenarios
from harness.execute.estimate import Estimate, estimate
from harness.execute.outline import PlannedTrial, outline
from harness.scenario import Scenario
from harness.shell import relative_to_here, shell_line, with_tilde
from harness.specs.eviction import rule_from_env
from harness.specs.pool import usable_blocks
from harness.store import DEFAULT_ROOT
from harness.theory.held import decoding_blocks, most_blocks
from harness.theory.prefix import requests_held, shared_blocks
from harness.units import DASH, counted, format_bytes, format_count, format_duration


def plan(
    scenario: Annotated[str, typer.Argument(help="Name in scenarios/, or a YAML file.")],
    profile: Annotated[str | None, typer.Option(help="cpu or cuda; detected if left out.")] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY.PATH=VALUE", help="Laid over the scenario; repeatable."),
    ] = None,
    repeats: Annotated[int | None, typer.Option(min=1, help="Server launches per variant.")] = None,
    out: Annotated[Path, typer.Option(help="Where runs are stored.")] = DEFAULT_ROOT,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON on stdout.")] = False,
) -> None:
    """Print every trial, its server command and its predicted KV figures; nothing is launched."""
    overrides = [*(set_ or ()), *([f"repeats={repeats}"] if repeats is not None else ())]
    resolved = scenarios.load(scenario, profile, overrides)
    planned = outline(resolved)
    expected = estimate(resolved, out)
    if as_json:
        typer.echo(json.dumps(_as_json(resolved, planned, expected), indent=2))
        return
    typer.echo(_as_text(resolved, planned, expected))


def _as_json(
    scenario: Scenario, planned: Sequence[PlannedTrial], expected: Estimate
) -> dict[str, Any]:
    return {
        "scenario": scenario.name,
        "profile": scenario.profile,
        "model": scenario.model,
        "estimate": {
            "total_s": expected.total_s,
            "quality_s": expected.quality_s,
            "judge_s": expected.judge_s,
            "launches": expected.launches,
            "trials": expected.trials,
            "skipped": list(expected.skipped),
            "basis": expected.basis,
        },
        "trials": [_trial_json(item) for item in planned],
    }


def _trial_json(item: PlannedTrial) -> dict[str, Any]:
    trial, capacity = item.trial, item.capacity
    theory = None
    if capacity is not None:
        theory = {
            "kv_cache_dtype": capacity.kv_cache_dtype,
            "kv_bytes_per_token": capacity.kv_bytes_per_token,
            "block_size": capacity.block_size,
            "kv_cache_memory_bytes": capacity.kv_cache_memory_bytes,
            "num_blocks": capacity.num_blocks,
            "kv_cache_tokens": capacity.kv_cache_tokens,
            "max_concurrency": capacity.max_concurrency,
            "concurrency_at_workload": capacity.concurrency(trial.workload.total_tokens),
            "blocks_held": _blocks_held(item),
            "notes": list(capacity.notes),
        }
    return {
        "trial": trial.trial_id,
        "variant": trial.variant,
        "repeat": trial.repeat,
        "launch": trial.launch,
        "workload": trial.workload.model_dump(),
        "command": list(item.command),
        "env": trial.env,
        "theory": theory,
        "theory_reason": item.capacity_reason,
    }


def _as_text(scenario: Scenario, planned: Sequence[PlannedTrial], expected: Estimate) -> str:
    lines = [
        f"{scenario.name}: {scenario.question}".rstrip(": "),
        _setting(scenario),
        estimate_text(expected),
        *_quality_lines(scenario, expected),
    ]
    for launches in _alike(planned):
        lines += ["", *_launch_lines(launches)]
    return "\n".join(lines)


def _quality_lines(scenario: Scenario, expected: Estimate) -> list[str]:
    """What is asked about quality, which is no trial and takes time all the same."""
    quality = scenario.quality
    if quality is None:
        return []
    context = quality.context_tokens or scenario.workloads[0].context_tokens
    asked = counted(quality.num_prompts, "prompt")
    needles = quality.needles
    hidden = ""
    if needles is not None:
        # Each cell of the grid gets a question for one needle and one for several.
        count = 2 * len(needles.context_tokens) * len(needles.depths) * needles.per_cell
        hidden = f" and {format_count(count)} questions for needles"
    line = (
        f"quality: {asked} of {format_count(context)} tokens with answers of "
        f"{format_count(quality.answer_tokens)}{hidden}, to each variant "
        f"{'that runs ' if expected.skipped else ''}once and to the baseline twice; about "
        f"{format_duration(expected.quality_s)} of the whole"
    )
    if expected.judge_s is not None:
        line += f", of which the judge takes about {format_duration(expected.judge_s)}"
    return [line]


def _alike(planned: Sequence[PlannedTrial]) -> list[list[list[PlannedTrial]]]:
    """Trials by launch, and launches that differ in nothing but the repeat together."""
    # The order of the loads turns from repeat to repeat; here it is that of the first one.
    places = {label: at for at, label in enumerate(i.trial.workload.label for i in planned[::-1])}
    launches: dict[int, list[PlannedTrial]] = {}
    for item in sorted(planned, key=lambda item: -places[item.trial.workload.label]):
        launches.setdefault(item.trial.launch, []).append(item)
    blocks: dict[tuple[str, ...], list[list[PlannedTrial]]] = {}
    for _, items in sorted(launches.items()):
        loads = ["\n".join(_workload_lines(item)) for item in items]
        key = (items[0].trial.variant, *_server_lines(items[0]), *loads)
        blocks.setdefault(key, []).append(items)
    return list(blocks.values())


def _launch_lines(launches: Sequence[Sequence[PlannedTrial]]) -> list[str]:
    first = launches[0]
    trials = [items[0].trial for items in launches]
    numbers = ", ".join(str(trial.launch + 1) for trial in trials)
    repeats = ", ".join(str(trial.repeat + 1) for trial in trials)
    many = "s" if len(trials) > 1 else ""
    lines = [f"launch{'es' if many else ''} {numbers}: variant {trials[0].variant}, "]
    lines[0] += f"repeat{many} {repeats}"
    lines += _server_lines(first[0])
    for at, item in enumerate(first):
        lines += _workload_lines(item)
        lines += [f"      {items[at].trial.trial_id}" for items in launches]
    return lines


def _setting(scenario: Scenario) -> str:
    return (
        f"model {scenario.model or DASH}, profile {scenario.profile}, baseline "
        f"{scenario.baseline}, KV budget {_budget(scenario)}"
    )


def estimate_text(expected: Estimate) -> str:
    """How many trials and launches will run, how long, and what that rests on."""
    where = (
        f"in {counted(expected.launches, 'server launch', 'server launches')}"
        if expected.launches is not None
        else "on a server that is running already"
    )
    skipped = ""
    if expected.skipped:
        skipped = f"; {counted(len(expected.skipped), 'variant')} will be skipped here"
    return (
        f"{counted(expected.trials, 'trial')} {where}, about "
        f"{format_duration(expected.total_s)}{skipped}\n  (estimate from {expected.basis})"
    )


def _budget(scenario: Scenario) -> str:
    budget = scenario.kv_budget
    if budget.value_bytes is not None:
        return f"{budget.mode} ({format_bytes(budget.value_bytes)})"
    if budget.value_tokens is not None:
        return f"{budget.mode} ({format_count(budget.value_tokens)} tokens)"
    granted = "" if budget.mode == "engine" else " (what the baseline is granted)"
    return f"{budget.mode}{granted}"


def _server_lines(item: PlannedTrial) -> list[str]:
    trial, capacity = item.trial, item.capacity
    lines = []
    if item.command:
        env = [f"{name}={shell_line([value])}" for name, value in trial.env.items()]
        lines.append(
            "  $ "
            + " ".join(
                [*env, shell_line(with_tilde(relative_to_here(word)) for word in item.command)]
            )
        )
    if capacity is None:
        lines.append(f"  KV theory: unknown ({item.capacity_reason})")
        return lines
    lines.append(
        f"  KV theory: {capacity.kv_cache_dtype}, {format_count(capacity.kv_bytes_per_token)} "
        f"B/token, blocks of {capacity.block_size}, pool {_pool(item)}"
    )
    if item.capacity_reason is not None and capacity.kv_cache_tokens is not None:
        lines.append(f"    {item.capacity_reason}")
    lines.extend(f"    note: {note}" for note in capacity.notes)
    return lines


def _pool(item: PlannedTrial) -> str:
    capacity = item.capacity
    if capacity is None or capacity.kv_cache_tokens is None:
        return f"unknown ({item.capacity_reason})"
    return (
        f"{format_bytes(capacity.kv_cache_memory_bytes)} = {format_count(capacity.num_blocks)} "
        f"blocks = {format_count(capacity.kv_cache_tokens)} tokens, "
        f"{format_count(capacity.max_concurrency, 2)} requests of max_model_len"
    )


def _workload_lines(item: PlannedTrial) -> list[str]:
    trial, capacity = item.trial, item.capacity
    fits = None if capacity is None else capacity.concurrency(trial.workload.total_tokens)
    fit_text = "" if fits is None else f"; {format_count(fits, 2)} such requests fit the pool"
    lines = [f"  {trial.workload.label}{fit_text}{_sharing_text(item)}"]
    if held := _blocks_held(item):
        lines.append(
            f"    each holds up to {format_count(held['most'])} blocks, "
            f"{format_count(held['decoding'])} while it answers"
        )
    return lines


def _sharing_text(item: PlannedTrial) -> str:
    """How many fit where the blocks of a common prefix are stored once; nothing without one."""
    trial, capacity = item.trial, item.capacity
    prefix, total = trial.workload.shared_prefix_tokens, trial.workload.total_tokens
    if capacity is None or capacity.num_blocks is None or not prefix:
        return ""
    if not trial.flags.get("enable_prefix_caching", True):
        return ", each with its own prefix"
    each = capacity.blocks_per_request(total)
    # Windows and states share blocks by rules of their own.
    plain = each == -(-total // capacity.block_size)
    common = shared_blocks(prefix, capacity.block_size)
    if not plain or not common:
        return ", sharing nothing: no whole block" if plain else ""
    held = requests_held(capacity.num_blocks, usable_blocks(capacity.num_blocks), each, common)
    return (
        f" on their own, {format_count(held)} with the {counted(common, 'block')} of their prefix "
        "stored once"
    )


def _blocks_held(item: PlannedTrial) -> dict[str, int | None] | None:
    """Blocks of a request whose tokens an eviction rule frees on the way; None without a rule."""
    rule, load = rule_from_env(item.trial.env), item.trial.workload
    if item.capacity is None or rule is None:
        return None
    block = item.capacity.block_size
    lengths = (load.context_tokens, load.total_tokens - load.context_tokens)
    return {
        "most": most_blocks(rule, block, *lengths, item.capacity.tokens_in_flight),
        "decoding": decoding_blocks(rule, block, *lengths),
    }
