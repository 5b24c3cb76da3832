"""``kvbench calc``: the arithmetic of a KV cache for any model, without a GPU or an engine.

Reads a config, predicts what the pinned engine would plan, and prints it as a table or as JSON.
Nothing is launched and no heavy library is loaded; the hub is asked only for a model that is
neither on disk nor shipped.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from harness.cli import calc_plot, calc_text
from harness.cli.calc_figures import Memory, figures, variants_of
from harness.engines import hub
from harness.errors import InputError, NotFound
from harness.overlay import overlay
from harness.specs.gpu import gpu_spec
from harness.specs.model import model_spec, read_config
from harness.specs.quantization import check_method
from harness.theory.budget import DEFAULT_UTILIZATION
from harness.theory.settings import Device, EngineSettings, default_max_num_batched_tokens
from harness.units import GIB, parse_tokens

Model = Annotated[str, typer.Argument(help="Hugging Face id, config.json, or a model folder.")]
Context = Annotated[str, typer.Option(help="Context lengths, such as 2k,8k,32k,128k.")]
KvDtypeName = Annotated[str, typer.Option(help="As --kv-cache-dtype: auto, fp8, …")]
Gpu = Annotated[str | None, typer.Option(help="A GPU by name, such as a100-80gb.")]
MemoryGib = Annotated[float | None, typer.Option(help="Memory of one GPU.")]
WeightsGib = Annotated[float | None, typer.Option(help="Weights on one GPU.")]
OverheadGib = Annotated[
    float | None, typer.Option(help="Activations, CUDA graphs and context on one GPU.")
]
KvMemoryGib = Annotated[float | None, typer.Option(help="KV pool of one GPU.")]
Utilization = Annotated[
    float | None, typer.Option(help=f"{DEFAULT_UTILIZATION} with --gpu, 1 with --memory-gib.")
]
Requests = Annotated[
    int | None, typer.Option(min=1, help="What so many requests need at each context.")
]
Length = Annotated[str | None, typer.Option(help="Tokens, such as 32k.")]
BlockSize = Annotated[int | None, typer.Option(help="Tokens per block.")]
Tp = Annotated[int, typer.Option(help="tensor_parallel_size")]
Pp = Annotated[int, typer.Option(help="pipeline_parallel_size")]
Dcp = Annotated[int, typer.Option(help="decode_context_parallel_size")]
Step = Annotated[int | None, typer.Option(help="Tokens of one scheduler step; matters to windows.")]
Drafts = Annotated[int, typer.Option(help="Draft tokens of the model's own MTP module.")]
PrefixCaching = Annotated[bool | None, typer.Option("--prefix-caching/--no-prefix-caching")]
Ahead = Annotated[
    bool | None,
    typer.Option(
        "--async-scheduling/--no-async-scheduling",
        help="Schedule a step ahead; the default on CUDA. Matters to windows.",
    ),
]
NoHybrid = Annotated[
    bool,
    typer.Option(help="Allocate windows in full, as engines did that lacked or disabled them."),
]
Dtype = Annotated[str, typer.Option(help="Dtype of weights and activations.")]
Quantization = Annotated[
    str | None, typer.Option(help="As --quantization, for the weight estimate.")
]
DeviceName = Annotated[str, typer.Option(help="cuda or cpu: sets the defaults.")]
Overrides = Annotated[str | None, typer.Option(help="JSON laid over the config, as vLLM's flag.")]
Compare = Annotated[
    str | None, typer.Option(help="Variants: mha, gqa, mqa, or KV dtypes; comma-separated.")
]
Plot = Annotated[Path | None, typer.Option(help="Draw the figures into this PNG.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON on stdout.")]


def calc(
    model: Model,
    context: Context = "2k,8k,32k,128k",
    kv_dtype: KvDtypeName = "auto",
    gpu: Gpu = None,
    memory_gib: MemoryGib = None,
    weights_gib: WeightsGib = None,
    overhead_gib: OverheadGib = None,
    kv_memory_gib: KvMemoryGib = None,
    gpu_memory_utilization: Utilization = None,
    requests: Requests = None,
    max_model_len: Length = None,
    block_size: BlockSize = None,
    tp: Tp = 1,
    pp: Pp = 1,
    dcp: Dcp = 1,
    max_num_batched_tokens: Step = None,
    num_speculative_tokens: Drafts = 0,
    prefix_caching: PrefixCaching = None,
    async_scheduling: Ahead = None,
    disable_hybrid_kv_cache_manager: NoHybrid = False,
    dtype: Dtype = "auto",
    quantization: Quantization = None,
    device: DeviceName = "cuda",
    hf_overrides: Overrides = None,
    compare: Compare = None,
    plot: Plot = None,
    as_json: AsJson = False,
) -> None:
    """Print KV bytes per token, per block and per request, and how many requests fit."""
    memory = _memory(
        (gpu, memory_gib, kv_memory_gib), weights_gib, overhead_gib, gpu_memory_utilization
    )
    if quantization is not None:
        check_method(quantization)
    settings = EngineSettings(
        device=_device(device),
        kv_cache_dtype=kv_dtype,
        dtype=dtype,
        block_size=block_size,
        max_model_len=None if max_model_len is None else _tokens(max_model_len),
        max_num_batched_tokens=_step_of_card(memory)
        if max_num_batched_tokens is None
        else max_num_batched_tokens,
        tensor_parallel_size=tp,
        pipeline_parallel_size=pp,
        decode_context_parallel_size=dcp,
        enable_prefix_caching=prefix_caching,
        num_speculative_tokens=num_speculative_tokens,
        async_scheduling=async_scheduling,
        quantization=quantization,
        disable_hybrid_kv_cache_manager=disable_hybrid_kv_cache_manager,
    )
    spec = model_spec(_config(model, hf_overrides), name=model)
    variants = variants_of(spec, settings, compare)
    results = [figures(variant, memory, _contexts(context), requests) for variant in variants]
    if plot is not None:
        calc_plot.draw(results, model, plot)
    _show(results, model, compare, as_json)


def _contexts(text: str) -> list[int]:
    lengths = [_tokens(part) for part in text.split(",") if part.strip()]
    if not lengths:
        raise InputError("--context names no length", next_move="write 2k,8k")
    return lengths


def _show(results: list[Mapping[str, Any]], model: str, compare: str | None, as_json: bool) -> None:
    if as_json:
        whole = {"model": model, "variants": results} if compare else results[0]
        typer.echo(json.dumps(whole, indent=2))
        return
    typer.echo(calc_text.render(results))


def _device(name: str) -> Device:
    if name == "cuda":
        return "cuda"
    if name == "cpu":
        return "cpu"
    raise InputError(f"unknown device {name!r}", legal=("cuda", "cpu"))


def _tokens(text: str) -> int:
    try:
        tokens = parse_tokens(text.strip())
    except ValueError as error:
        raise InputError(str(error)) from None
    if not 1 <= tokens <= _MOST_CONTEXT:
        raise InputError(f"a length of {text[:80]} tokens is no length")
    return tokens


def _config(model: str, overrides: str | None) -> Mapping[str, Any]:
    try:
        config = read_config(model)
    except NotFound:
        if model.count("/") != 1 or Path(model).suffix == ".json" or hub.is_path(model):
            raise
        config = hub.fetch_config(model)
    if overrides is None:
        return config
    try:
        laid_over = json.loads(overrides)
    except (ValueError, RecursionError) as error:
        raise InputError(f"--hf-overrides is no JSON: {error}") from None
    if not isinstance(laid_over, dict):
        raise InputError("--hf-overrides must be a JSON object")
    return overlay(config, laid_over)


def _memory(
    ways: tuple[str | None, float | None, float | None],
    weights_gib: float | None,
    overhead_gib: float | None,
    utilization: float | None,
) -> Memory:
    given = [name for name, value in zip(_WAYS, ways, strict=True) if value is not None]
    if len(given) > 1:
        raise InputError(f"{' and '.join(given)} contradict each other", legal=_WAYS)
    if utilization is not None and not 0 < utilization <= 1:
        raise InputError(f"gpu_memory_utilization {utilization} is not in (0, 1]")
    gpu, memory_gib, kv_memory_gib = ways
    spec = gpu_spec(gpu) if gpu is not None else None
    return Memory(
        gpu=spec,
        total_bytes=spec.memory_bytes if spec else _bytes("--memory-gib", memory_gib),
        weights_bytes=_bytes("--weights-gib", weights_gib),
        overhead_bytes=_bytes("--overhead-gib", overhead_gib),
        kv_bytes=_bytes("--kv-memory-gib", kv_memory_gib),
        utilization=utilization or (DEFAULT_UTILIZATION if spec else 1.0),
    )


#: As long as a scenario's longest; a prefill is summed over its steps.
_MOST_CONTEXT = 100_000_000
#: An exbibyte: larger than any memory, and its bytes are still a number of 64 bits.
_MOST_GIB = float(1 << 30)
_WAYS = ("--gpu", "--memory-gib", "--kv-memory-gib")


def _bytes(option: str, gib: float | None) -> int | None:
    if gib is None:
        return None
    if not 0 <= gib <= _MOST_GIB:
        raise InputError(f"{option} {gib} is no size of a memory")
    return int(gib * GIB)


def _step_of_card(memory: Memory) -> int | None:
    """The engine's default step size depends on the card; None leaves the smallest one."""
    if memory.gpu is None:
        return None
    return default_max_num_batched_tokens(memory.gpu.memory_bytes, memory.gpu.name)
