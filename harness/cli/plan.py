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
from harness.specs.eviction import SnapKvRule, rule_from_env
from harness.store import DEFAULT_ROOT
from harness.theory.snapkv import snapkv_blocks_held, snapkv_most_blocks_held
from harness.units import DASH, format_bytes, format_count, format_duration


def plan(
    scenario: Annotated[str, typer.Argument(help="Name in scenarios/, or a YAML file.")],
    profile: Annotated[str | None, typer.Option(help="cpu or cuda; detected if left out.")] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY.PATH=VALUE", help="Laid over the scenario; repeatable."),
    ] = None,
    out: Annotated[Path, typer.Option(help="Where runs are stored.")] = DEFAULT_ROOT,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON on stdout.")] = False,
) -> None:
    """Print every trial, its server command and its predicted KV figures; nothing is launched."""
    resolved = scenarios.load(scenario, profile, set_ or ())
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
        "estimate": {"total_s": expected.total_s, "basis": expected.basis},
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
    ]
    for item in planned:
        if item is planned[0] or item.trial.launch != _before(planned, item).trial.launch:
            lines += ["", *_launch_lines(item)]
        lines += _workload_lines(item)
    return "\n".join(lines)


def _setting(scenario: Scenario) -> str:
    return (
        f"model {scenario.model or DASH}, profile {scenario.profile}, baseline "
        f"{scenario.baseline}, KV budget {_budget(scenario)}"
    )


def estimate_text(expected: Estimate) -> str:
    """How many trials and launches, how long, and what that rests on."""
    return (
        f"{expected.trials} trials in {expected.launches} server launches, about "
        f"{format_duration(expected.total_s)}\n  (estimate from {expected.basis})"
    )


def _before(planned: Sequence[PlannedTrial], item: PlannedTrial) -> PlannedTrial:
    return planned[planned.index(item) - 1]


def _budget(scenario: Scenario) -> str:
    budget = scenario.kv_budget
    if budget.value_bytes is not None:
        return f"{budget.mode} ({format_bytes(budget.value_bytes)})"
    if budget.value_tokens is not None:
        return f"{budget.mode} ({format_count(budget.value_tokens)} tokens)"
    granted = "" if budget.mode == "engine" else " (what the baseline is granted)"
    return f"{budget.mode}{granted}"


def _launch_lines(item: PlannedTrial) -> list[str]:
    trial, capacity = item.trial, item.capacity
    lines = [f"launch {trial.launch + 1}: variant {trial.variant}, repeat {trial.repeat + 1}"]
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
    lines = [f"  {trial.trial_id}", f"    {trial.workload.label}{fit_text}"]
    if held := _blocks_held(item):
        lines.append(
            f"    each holds up to {format_count(held['most'])} blocks, "
            f"{format_count(held['decoding'])} at the end of its answer"
        )
    return lines


def _blocks_held(item: PlannedTrial) -> dict[str, int] | None:
    """Blocks of a request under SnapKV, which frees some once a prompt is computed."""
    rule, load = rule_from_env(item.trial.env), item.trial.workload
    if item.capacity is None or not isinstance(rule, SnapKvRule):
        return None
    tokens = (item.capacity.block_size, load.context_tokens, load.total_tokens)
    return {
        "most": snapkv_most_blocks_held(rule, *tokens),
        "decoding": snapkv_blocks_held(rule, *tokens),
    }
