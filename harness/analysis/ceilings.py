"""How near a load came to what its device can do at best, and whether it came too near.

Method: the rooflines of ``theory`` for one trial: the least TTFT and TPOT, the most output tokens
per second, and from the same count of work the shares of peak that were used (MFU, MBU). A GPU's
peaks come from its data sheet, a CPU's from the run's own record. A figure that beats its bound
is flagged: one of the two is wrong.

Not covered (no bound is given, with the reason): requests that share or differ in length,
speculation, data-parallel servers, parts of a GPU (MIG), and devices that nobody has figures of.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from harness.analysis.results import Summary, TrialCeilings, Verdict
from harness.record import Environment, Run
from harness.scenario.schema import shape_label
from harness.specs.gpu import reported_gpu
from harness.specs.model import ModelSpec
from harness.theory.roofline import (
    Ceilings,
    beyond,
    ceilings_of,
    load_ceilings,
    load_work,
    model_bandwidth_utilization,
    model_flops_utilization,
)
from harness.theory.settings import EngineSettings

#: Ways of serving whose steps are not those that the roofline counts.
_OTHER_STEPS = ("speculative_config", "data_parallel_size", "enable_dbo")


def trial_ceilings(
    run: Run, model: ModelSpec, settings: EngineSettings
) -> tuple[TrialCeilings | None, str | None]:
    """The trial's bounds, or None and why.

    Raises:
        ModelConfigError: the config lacks what only weights need.
    """
    workload = run.trial.workload
    if run.server is not None and not run.server.launched:
        return None, "the server was attached to: on which device it runs is not known"
    requests = _together(workload)
    if requests is None or shape_label(workload):
        return None, "requests that share a prefix or differ in length have no common bound"
    other = [flag for flag in _OTHER_STEPS if run.trial.server_flags.get(flag) not in (None, 1)]
    if other:
        return None, f"no bound is known under {', '.join(other)}"
    ceilings, missing = device_ceilings(run.environment, model, settings)
    if ceilings is None:
        return None, missing
    shape = {
        "concurrency": requests,
        "prompt_tokens": workload["context_tokens"],
        "output_tokens": workload["output_tokens"],
    }
    best = load_ceilings(model, settings, ceilings, **shape)
    return TrialCeilings(
        device=ceilings.device,
        source=ceilings.source,
        bandwidth_bytes_per_s=ceilings.bandwidth_bytes_per_s,
        flops_per_s=ceilings.flops_per_s,
        ttft_s=best.ttft_s,
        tpot_s=best.tpot_s,
        output_throughput=best.output_tokens_per_s,
    ), None


def _together(workload: Mapping[str, Any]) -> int | None:
    """The most requests that a step can serve at once: slots, or all of an open loop."""
    prompts, slots = workload.get("num_prompts"), workload.get("concurrency")
    if not isinstance(prompts, int):
        return None
    return min(prompts, slots) if isinstance(slots, int) else prompts


def device_ceilings(
    environment: Environment, model: ModelSpec, settings: EngineSettings
) -> tuple[Ceilings | None, str | None]:
    """What the device of a run can do at best, or None and why nobody knows."""
    if settings.device == "cpu":
        peaks = environment.cpu_peaks
        if peaks is None:
            return None, "this CPU's bandwidth and matrix rate were not measured"
        name = environment.cpu or "CPU"
        measured = "measured with torch (docs/theory.md)"
        return Ceilings(name, peaks.bandwidth_bytes_per_s, peaks.flops_per_s, measured), None
    names = {gpu.name for gpu in environment.gpus}
    if len(names) != 1 or any(gpu.mig for gpu in environment.gpus):
        return None, "no single kind of whole GPU is known to have served this run"
    found = reported_gpu(names.pop())
    if found is None:
        return None, f"no data sheet is known for {environment.gpus[0].name}"
    return ceilings_of(found, model, settings), None


def with_use(
    known: TrialCeilings, run: Run, model: ModelSpec, settings: EngineSettings, summary: Summary
) -> TrialCeilings:
    """The bounds with the shares of peak that the load used; unknown without a throughput."""
    requests, rate = _together(run.trial.workload), summary.output_throughput
    if requests is None or not rate:
        return known
    output = run.trial.workload["output_tokens"]
    work = load_work(
        model,
        settings,
        concurrency=requests,
        prompt_tokens=run.trial.workload["context_tokens"],
        output_tokens=output,
    )
    took_s = requests * output / rate
    peaks = Ceilings(known.device, known.bandwidth_bytes_per_s, known.flops_per_s, known.source)
    moved = work.weight_bytes + work.kv_bytes
    return replace(
        known,
        mfu=model_flops_utilization(work.flops, took_s, peaks),
        mbu=model_bandwidth_utilization(moved, took_s, peaks),
    )


def beyond_ceilings(known: TrialCeilings, summary: Summary) -> Iterator[Verdict]:
    """A verdict for each figure that beats its bound by more than jitter."""
    checked = (
        ("output_throughput", "output tokens/s", summary.output_throughput, True),
        ("ttft_s", "TTFT p50 (s)", summary.ttft_s.p50, False),
        ("tpot_s", "TPOT p50 (s)", summary.tpot_s.p50, False),
    )
    for field, what, value, higher_is_better in checked:
        if value is None or value <= 0:
            continue
        bound: float = getattr(known, field)
        told = beyond(value, bound, what=what, higher_is_better=higher_is_better)
        if told is not None:
            yield Verdict(field, "suspect", "beyond_ceiling", told)
