"""``kvbench advise``: which KV-cache strategy a case of your own calls for, from theory alone.

The table is that of ``kvbench report --scoreboard``, every figure modelled: nothing is launched,
nothing was measured, and the output says so.
"""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from typing import Annotated

import typer

from harness.engines import models
from harness.errors import InputError, NotFound
from harness.specs.gpu import GIVEN, GpuSpec, gpu_spec
from harness.specs.model import ModelSpec, model_spec
from harness.theory.advice import WHOLE_LENGTH, Advice, Case, Option
from harness.theory.advice import advise as weigh
from harness.theory.budget import DEFAULT_UTILIZATION, MemoryBudget
from harness.theory.settings import EngineSettings, default_max_num_batched_tokens
from harness.units import (
    DASH,
    GIB,
    format_bytes,
    format_count,
    format_duration,
    format_percent,
    format_rate,
    format_ratio,
    parse_tokens,
)

STAMP = "modelled"
#: A tebibyte: larger than any card.
_MOST_GIB = 1024.0
SAYS = "theory alone: every figure is modelled, nothing was measured; `kvbench bench` measures"


def advise(
    model: Annotated[str, typer.Argument(help="Hugging Face id, config.json, or a model folder.")],
    context: Annotated[str, typer.Option(help="Tokens of one request, output included: 32k.")],
    concurrency: Annotated[int, typer.Option(min=1, help="Requests to be served at once.")],
    gpu: Annotated[str, typer.Option(help="A GPU by name, such as a100-80gb.")],
    output_tokens: Annotated[str, typer.Option(help="Tokens of one answer.")] = "256",
    shared_prefix: Annotated[
        str | None, typer.Option(help="Tokens that all prompts begin with, such as 1000.")
    ] = None,
    memory_gib: Annotated[
        float | None, typer.Option(help="Total memory of one such GPU, as your driver reports it.")
    ] = None,
    tp: Annotated[int, typer.Option(min=1, help="tensor_parallel_size")] = 1,
    gpu_memory_utilization: Annotated[float, typer.Option()] = DEFAULT_UTILIZATION,
    async_scheduling: Annotated[
        bool | None,
        typer.Option(
            "--async-scheduling/--no-async-scheduling",
            help="Schedule a step ahead, the engine's default; matters to windows.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON on stdout.")] = False,
) -> None:
    """Weigh the KV-cache strategies for your case, from theory alone."""
    if not 0 < gpu_memory_utilization <= 1:
        raise InputError(f"gpu_memory_utilization {gpu_memory_utilization} is not in (0, 1]")
    card = _card(gpu, memory_gib)
    case = Case(
        context_tokens=_tokens(context),
        concurrency=concurrency,
        output_tokens=_tokens(output_tokens),
        shared_prefix_tokens=0 if shared_prefix is None else _tokens(shared_prefix),
    )
    settings = replace(_settings(card, tp), async_scheduling=async_scheduling)
    advice = weigh(_model(model), settings, card, case, utilization=gpu_memory_utilization)
    if as_json:
        typer.echo(json.dumps({"model": model, "stamp": STAMP, "says": SAYS, **asdict(advice)}))
    else:
        typer.echo(_text(model, advice))


def _card(name: str, memory_gib: float | None) -> GpuSpec:
    card = gpu_spec(name)
    if memory_gib is None:
        return card
    if not 0 < memory_gib <= _MOST_GIB:
        raise InputError(f"--memory-gib {memory_gib} is no size of a memory")
    return replace(card, memory_bytes=int(memory_gib * GIB), memory_source=GIVEN)


def _tokens(text: str) -> int:
    try:
        return parse_tokens(text.strip())
    except ValueError as error:
        raise InputError(str(error)) from None


def _model(name: str) -> ModelSpec:
    config = models.config_of(name)
    if config is None:
        raise NotFound(
            f"nothing is known of the model {name!r}",
            next_move="give the path of its config.json, or go online so that the hub can be asked",
        )
    return model_spec(config, name=name)


def _settings(card: GpuSpec, tp: int) -> EngineSettings:
    step = default_max_num_batched_tokens(card.memory_bytes, card.name)
    return EngineSettings(device="cuda", tensor_parallel_size=tp, max_num_batched_tokens=step)


def _text(model: str, advice: Advice) -> str:
    case, budget = advice.case, advice.budget
    shared = format_count(case.shared_prefix_tokens)
    prefix = f", {shared} of them shared" if case.shared_prefix_tokens else ""
    requests, length = format_count(case.concurrency), format_count(case.context_tokens)
    wanted = f"{requests} requests of {length} tokens{prefix}"
    terms = ", ".join(f"{term.name} {format_bytes(term.bytes)}" for term in budget.terms)
    card = advice.gpu if advice.gpus == 1 else f"{format_count(advice.gpus)} × {advice.gpu}"
    lines = [f"{model} on {card}: {wanted}", f"  ({SAYS})", f"{_pool(budget)}: {terms}"]
    lines += [*(f"  {note}" for note in advice.notes), ""]
    # Nobody can choose what paging replaced: it stays in the JSON.
    options = [option for option in advice.options if option.strategy != WHOLE_LENGTH]
    weighed = [option for option in options if option.reason is None]
    width = max(len(option.strategy) for option in weighed)
    lines += [_head(width), *(_line(option, width) for option in weighed)]
    lines += [f"no figures: {o.strategy}: {o.reason}" for o in options if o.reason is not None]
    lines += ["", f"recommended: {advice.recommended or DASH}", f"  {advice.why}", _FOOT]
    return "\n".join(lines)


def _pool(budget: MemoryBudget) -> str:
    usable = int(budget.total_bytes * budget.utilization)
    of = (
        f"{format_percent(budget.utilization, 0)} of {format_bytes(budget.total_bytes)}, "
        f"{format_bytes(usable)}, per GPU"
    )
    if budget.fits:
        return f"KV pool {format_bytes(budget.kv_bytes)} of what the engine may use ({of})"
    return f"no KV pool: {format_bytes(-budget.kv_bytes)} more than the engine may use ({of})"


def _head(width: int) -> str:
    columns = (
        f"{'memory':>8} {'capacity':>8} {'fit':>7} {'decoding at most':>22} {'TTFT at least':>17}"
    )
    return f"{'strategy':{width}} {columns}  effort"


_FOOT = (
    "Ratios are to the first line (memory: higher saves more). Decoding is the roofline's upper "
    "bound, all cards together, with the requests that fit (at most those asked for); TTFT is its "
    "lower bound for a prompt alone. `kvbench bench` measures them, and what a strategy costs in "
    "answers."
)


def _line(option: Option, width: int) -> str:
    rate = format_rate(option.throughput_tokens_per_s, "tok/s", 0)
    figures = (
        f"{option.strategy:{width}} {format_ratio(option.memory_ratio):>8} "
        f"{format_ratio(option.capacity_ratio):>8} {format_count(option.concurrency, 1):>7} "
        f"{rate:>13} {format_ratio(option.throughput_ratio):>8} "
        f"{format_duration(option.ttft_s):>9} {format_ratio(option.ttft_ratio):>7}"
    )
    fits = ", fits" if option.fits else ""
    return (
        f"{figures}  {option.effort}: {option.change}\n"
        f"    {STAMP}{fits}; quality loss: {option.quality_loss}"
    )
