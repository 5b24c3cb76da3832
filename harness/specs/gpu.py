"""What accelerators can do at best, by their makers' data sheets.

Method: one row per device: memory, memory bandwidth, and dense matrix rates (no sparsity) at
16-bit and, where the device has it, 8-bit floating point; each row names its source. Rates are
those with fp32 accumulation. Memory is the total that ``nvidia-smi`` prints, since the size on the
label is up to 6 % more; without a printout to name it is the label's. Not covered: what the driver
takes before CUDA sees the card (0.7 GiB of a B200: pytorch/ao, pull request 4002, prints 178.35
where ``nvidia-smi`` has 179.06), clocks below boost, power caps, interconnects.
"""

from __future__ import annotations

from dataclasses import dataclass

from harness.errors import NotFound, did_you_mean
from harness.units import MIB, Bytes, format_bytes


@dataclass(frozen=True, slots=True)
class GpuSpec:
    """One device. Bandwidth in bytes/s (GB = 10⁹), rates in FLOP/s, dense; unknown is None.

    ``reported_as`` are fragments of the name that the driver reports, all of which must occur.
    ``memory_source`` names the printout that the memory is taken from; None: the label's size.
    """

    name: str
    memory_bytes: Bytes
    bandwidth_bytes_per_s: float
    flops_16bit: float
    flops_8bit: float | None
    source: str
    reported_as: tuple[str, ...]
    memory_source: str | None = None


def _row(  # the columns of the table below, in order
    name: str,
    memory: tuple[int, str | None],
    gb_per_s: float,
    tflops_16bit: float,
    tflops_8bit: float | None,
    source: str,
    *reported_as: str,
) -> GpuSpec:
    return GpuSpec(
        name,
        memory[0] * MIB,
        gb_per_s * 1e9,
        tflops_16bit * 1e12,
        None if tflops_8bit is None else tflops_8bit * 1e12,
        source,
        reported_as,
        memory[1],
    )


def _smi(mib: int, where: str) -> tuple[int, str]:
    return mib, f"nvidia-smi ({where})"


def _label(gib: int) -> tuple[int, None]:
    return gib * 1024, None


_MODAL = "modal-labs/modal-client, pull request 2797"
#: Printed alike in many public logs.
_LOGS = "public logs"
_ADA = "NVIDIA Ada GPU architecture whitepaper, appendix"
_BLACKWELL = "NVIDIA RTX Blackwell GPU architecture whitepaper, appendix"

GPUS: tuple[GpuSpec, ...] = (
    _row("t4", _smi(15360, _MODAL), 320, 65, None, "NVIDIA T4 data sheet", "T4"),
    _row("v100-32gb", _label(32), 900, 125, None, "NVIDIA V100 data sheet", "V100", "32GB"),
    _row("a10", _smi(23028, _MODAL), 600, 125, None, "NVIDIA A10 data sheet", "A10"),
    _row("rtx-a6000", _label(48), 768, 154.8, None, "NVIDIA RTX A6000 data sheet", "RTX A6000"),
    _row(
        "rtx-3090",
        _smi(24576, "noonghunna/club-3090, issue 127"),
        936,
        71,
        None,
        "NVIDIA GA102 whitepaper, appendix",
        "3090",
    ),
    _row(
        "rtx-4090", _smi(24564, "vllm-project/vllm, issue 7553"), 1008, 165.2, 330.3, _ADA, "4090"
    ),
    _row(
        "rtx-5090",
        _smi(32607, "noonghunna/club-3090, issue 1261"),
        1792,
        209.5,
        419,
        _BLACKWELL,
        "5090",
    ),
    _row("l4", _smi(23034, _MODAL), 300, 121, 242.5, "NVIDIA L4 data sheet", "L4"),
    _row("l40s", _smi(46068, _MODAL), 864, 362.05, 733, "NVIDIA L40S data sheet", "L40S"),
    _row(
        "a100-40gb", _smi(40960, _MODAL), 1555, 312, None, "NVIDIA A100 data sheet", "A100", "40GB"
    ),
    _row(
        "a100-80gb",
        _smi(81920, _MODAL),
        2039,
        312,
        None,
        "NVIDIA A100 data sheet (SXM)",
        "A100",
        "80GB",
    ),
    _row(
        "a100-80gb-pcie",
        _smi(81920, _MODAL),
        1935,
        312,
        None,
        "NVIDIA A100 data sheet",
        "A100 80GB PCIe",
    ),
    _row(
        "h100-sxm",
        _smi(81559, _MODAL),
        3350,
        989.4,
        1978.9,
        "NVIDIA H100 data sheet (SXM)",
        "H100",
        "HBM3",
    ),
    _row(
        "h100-pcie",
        _smi(81559, _MODAL),
        2000,
        756.5,
        1513,
        "NVIDIA H100 data sheet (PCIe)",
        "H100 PCIe",
    ),
    _row(
        "h100-nvl",
        _smi(95830, "NVIDIA/gpu-admin-tools, issue 4"),
        3900,
        835.5,
        1671,
        "NVIDIA H100 data sheet (NVL)",
        "H100 NVL",
    ),
    _row("h20", _smi(97871, _LOGS), 4000, 148, 296, "NVIDIA H20 data sheet", "H20"),
    _row("h200", _smi(143771, _LOGS), 4800, 989.4, 1978.9, "NVIDIA H200 data sheet", "H200"),
    _row(
        "b200",
        _smi(183359, "NVIDIA/TensorRT-LLM, issue 10278"),
        8000,
        2250,
        4500,
        "NVIDIA DGX B200 data sheet, per GPU",
        "B200",
    ),
    _row("mi300x", _label(192), 5300, 1307.4, 2614.9, "AMD Instinct MI300X data sheet", "MI300X"),
)
#: Short names that people use for the usual variant.
_ALIASES = {
    "a100": "a100-80gb",
    "h100": "h100-sxm",
    "h100-80gb": "h100-sxm",
    "4090": "rtx-4090",
    "5090": "rtx-5090",
    "3090": "rtx-3090",
}


#: What ``memory_source`` says where a user stated the memory.
GIVEN = "as given"


def memory_note(spec: GpuSpec) -> str:
    """What the card's memory rests on, and what to do where another figure is known."""
    if spec.memory_source == GIVEN:
        return f"memory of one {spec.name}: {format_bytes(spec.memory_bytes)}, as given"
    rests = "the size on its label; drivers report up to 6 % less"
    if spec.memory_source is not None:
        rests = f"what {spec.memory_source} prints; CUDA sees up to 1 GiB less"
    return (
        f"memory of one {spec.name}: {format_bytes(spec.memory_bytes)} is {rests}: "
        "give your card's total with --memory-gib"
    )


def gpu_names() -> tuple[str, ...]:
    """The names that ``gpu_spec`` takes."""
    return tuple(row.name for row in GPUS)


def gpu_spec(name: str) -> GpuSpec:
    """Look a device up by its short name, in any case, with ``_`` or spaces for ``-``.

    Raises:
        NotFound: no row; the legal names are listed.
    """
    key = name.strip().lower().replace("_", "-").replace(" ", "-")
    key = _ALIASES.get(key, key)
    for row in GPUS:
        if row.name == key:
            return row
    raise NotFound(
        f"no data sheet for the GPU {name!r}",
        legal=gpu_names(),
        next_move=did_you_mean(key, gpu_names()) or "give --memory-gib instead",
    )


def reported_gpu(device_name: str) -> GpuSpec | None:
    """The row of a device by the name that its driver reports; None means no ceiling is known.

    The longest match wins, so that ``H100 PCIe`` is not taken for an ``H100``.
    """
    words = device_name.upper()
    matches = [row for row in GPUS if all(_occurs(part.upper(), words) for part in row.reported_as)]
    return max(matches, key=lambda row: sum(map(len, row.reported_as)), default=None)


def _occurs(part: str, words: str) -> bool:
    """Whole words only: ``L4`` is not in ``L40S``."""
    return f" {part} " in f" {words.replace('-', ' ').replace('_', ' ')} "
