"""Every path under ``results/``, and the only reader and writer of what lies there.

Layout, one folder per run and one per trial (``docs/results-format.md`` documents the files)::

    results/<scenario>/<run-id>/bench.json
    results/<scenario>/<run-id>/<trial-id>/run.json        written first: started; sealed last
                                          /requests.jsonl  one line per request, as it ends
                                          /samples.jsonl   one line per telemetry sample
                                          /server.log      the engine's whole log
    results/<scenario>/<run-id>/quality/prompts.jsonl      the questions, written once
                                       /<pass-id>/         pass.json, answers.jsonl, scores.jsonl
                                       /judge-<id>/        judge.json, judgements.jsonl

Whatever is replaced is written beside and moved into place, so that a reader never sees half a
file; lines are appended and flushed at once, so that a killed harness keeps what it measured.
A line that was cut off by a kill, or that contradicts itself, is counted and left out, never
guessed.
"""

from __future__ import annotations

import errno
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self, TypeVar

import msgspec

from harness.characters import REPLACEMENT
from harness.errors import KvbenchError, NotFound, StoreError
from harness.plausible import (
    is_sound_answer,
    is_sound_judgement,
    is_sound_prompt,
    is_sound_score,
    run_fault,
    scenario_fault,
    sound_requests,
    with_sound_pool,
)
from harness.record import (
    SCHEMA_VERSION,
    BenchRecord,
    CacheSample,
    ClientSample,
    EngineSample,
    GpuSample,
    Judgement,
    JudgeRecord,
    JudgeRun,
    PassRecord,
    ProcessSample,
    QualityAnswer,
    QualityPass,
    QualityPrompt,
    QualityRecords,
    QualityScore,
    RequestRecord,
    Run,
    Sample,
    TrialRecord,
)

if sys.platform != "win32":
    import fcntl

DEFAULT_ROOT = Path("results")
BENCH_FILE = "bench.json"
RUN_FILE = "run.json"
REQUESTS_FILE = "requests.jsonl"
SAMPLES_FILE = "samples.jsonl"
LOG_FILE = "server.log"
QUALITY_FOLDER = "quality"
PROMPTS_FILE = "prompts.jsonl"
PASS_FILE = "pass.json"  # noqa: S105 - a file name
ANSWERS_FILE = "answers.jsonl"
SCORES_FILE = "scores.jsonl"
JUDGE_FILE = "judge.json"
JUDGEMENTS_FILE = "judgements.jsonl"
JUDGE_PREFIX = "judge-"

_SAMPLE_KINDS: dict[str, type[Any]] = {
    "gpu": GpuSample,
    "process": ProcessSample,
    "engine": EngineSample,
    "client": ClientSample,
    "cache": CacheSample,
}
_KIND_OF = {kind: name for name, kind in _SAMPLE_KINDS.items()}

T = TypeVar("T")

_SURROGATE = re.compile("[\ud800-\udfff]")
_RESTORE = "restore the file from a copy, or measure again; kvbench itself never edits a record"


def new_run_folder(root: Path, scenario_slug: str) -> Path:
    """Create and return a fresh folder ``<root>/<scenario>/<UTC time>-<part of the second>``.

    The part is in 1/65,536 s, four hex digits, so names in order are runs in order, those of one
    second among them.

    Raises:
        StoreError: the folder can't be created (no permission, disk full).
    """
    while True:
        folder = root / scenario_slug / _run_id(time.time_ns())
        try:
            folder.mkdir(parents=True)
        except OSError as error:
            # Another run began in the same part of the second: the next one is ours.
            if not folder.is_dir():
                raise _cannot_write(folder, error) from error
        else:
            return folder


def _run_id(unix_ns: int) -> str:
    second, nanoseconds = divmod(unix_ns, 1_000_000_000)
    part = (nanoseconds << 16) // 1_000_000_000
    return f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime(second))}-{part:04x}"


def runs_of(root: Path, scenario_slug: str) -> tuple[Path, ...]:
    """The stored runs of a scenario, oldest first."""
    return _runs_in(root / scenario_slug)


def _runs_in(folder: Path) -> tuple[Path, ...]:
    if not _is_there(folder, Path.is_dir):
        return ()
    return tuple(sorted(path.parent for path in folder.glob(f"*/{BENCH_FILE}")))


def find_run(given: str, root: Path = DEFAULT_ROOT) -> Path:
    """Find a run by its folder, its run id, or a scenario's name or folder (its latest run).

    The latest is that in which something was measured; without one, the latest of all.

    Raises:
        NotFound: nothing under ``root`` answers to that name.
    """
    # The manifest itself is as good a name of a run as its folder.
    folder = Path(given).parent if Path(given).name == BENCH_FILE else Path(given)
    if _is_there(folder / BENCH_FILE):
        return folder
    is_name = "/" not in given and given not in ("", ".", "..")
    by_scenario = (runs_of(root, given) if is_name else ()) or (_runs_in(folder) if given else ())
    if by_scenario:
        # One in which every start failed, such as under a mistyped URL, hides no measured one.
        measured = (path for path in reversed(by_scenario) if something_measured(path))
        return next(measured, by_scenario[-1])
    by_id = [path for path in _all_runs(root) if path.name == given]
    if len(by_id) == 1:
        return by_id[0]
    stored = [str(path) for path in _all_runs(root)[-8:]]
    raise NotFound(
        f"there is no stored run {given[:200]!r}",
        where=str(root),
        legal=stored or None,
        next_move="give the folder that `kvbench bench` printed, a run id, or a scenario's name"
        if stored
        else "none is stored there: `kvbench bench smoke` makes one, `--out` names another place",
    )


def something_measured(run_folder: Path) -> bool:
    """Whether any trial was measured to its end; what is damaged counts, so that it is told."""
    try:
        trial_ids = read_manifest(run_folder).trial_ids
        return any(is_sealed(run_folder, trial_id) for trial_id in trial_ids)
    except KvbenchError:
        return True


def _is_there(path: Path, look: Callable[[Path], bool] = Path.is_file) -> bool:
    try:
        return look(path)
    except (OSError, ValueError):
        # Longer than a name may be, not ours to look at, or no name at all.
        return False


def server_log(run_folder: Path, name: str) -> Path:
    """Where one start of a server writes its log: ``servers/<name>.log``.

    A second start under the same name (a run that is resumed) gets ``<name>.2.log`` and so on: in
    a shared file a reason would be looked up in what an earlier server had said.
    """
    return _unused(run_folder / "servers" / f"{name}.log")


def set_log_aside(path: Path) -> None:
    """Free the name of a log for the next start; what it says stays, under the next number."""
    path.rename(_unused(path))


def _unused(path: Path) -> Path:
    number, found = 1, path
    while found.exists():
        number += 1
        found = path.with_name(f"{path.stem}.{number}{path.suffix}")
    return found


@contextmanager
def hold_run(run_folder: Path) -> Iterator[None]:
    """Keep a run to this process while it is being measured.

    The lock is the system's own, so it is gone with the process however that ends. File systems
    that know no locks give none.

    Raises:
        StoreError: another kvbench is measuring into this run.
    """
    if sys.platform == "win32":
        yield
        return
    try:
        handle = os.open(run_folder, os.O_RDONLY)
    except OSError as error:
        raise _cannot_write(run_folder, error) from error
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        raise StoreError(
            "another kvbench is measuring into this run",
            where=str(run_folder),
            next_move="wait until it has ended, or leave --resume out to begin a new run",
        ) from None
    except OSError:
        pass
    try:
        yield
    finally:
        os.close(handle)


def _all_runs(root: Path) -> list[Path]:
    return sorted((p.parent for p in root.glob(f"*/*/{BENCH_FILE}")), key=lambda p: p.name)


def write_bench(run_folder: Path, bench: BenchRecord) -> None:
    """Write (or replace) ``bench.json``."""
    _replace_file(run_folder / BENCH_FILE, _pretty(bench))


def read_bench(run_folder: Path) -> tuple[BenchRecord, tuple[TrialRecord, ...]]:
    """Read a run with all trials that were begun, in running order.

    Raises:
        NotFound: the folder holds no run.
        StoreError: it was written by a newer kvbench, or is damaged beyond a cut-off line.
    """
    bench = read_manifest(run_folder)
    folders = [run_folder / trial_id for trial_id in bench.trial_ids]
    return bench, tuple(read_trial(folder) for folder in folders if _is_there(folder / RUN_FILE))


def read_manifest(run_folder: Path) -> BenchRecord:
    """Read ``bench.json`` alone."""
    path = run_folder / BENCH_FILE
    if not path.is_file():
        raise NotFound("there is no run here", where=str(path))
    bench = _decode(path, BenchRecord)
    for trial_id in bench.trial_ids:
        if Path(trial_id).name != trial_id or trial_id in (".", ".."):
            raise StoreError(f"{trial_id!r} is no name of a trial folder", where=str(path))
    if len(set(bench.trial_ids)) < len(bench.trial_ids):
        raise StoreError("damaged: a trial is listed twice", where=str(path))
    if (fault := scenario_fault(bench.scenario)) is not None:
        raise StoreError(f"damaged: {fault}", where=str(path), next_move=_RESTORE)
    return bench


def read_trial(folder: Path) -> TrialRecord:
    """Read one trial; lines that were cut off are counted in ``damaged_lines``."""
    run = with_sound_pool(_decode_run(folder / RUN_FILE))
    if (fault := run_fault(run)) is not None:
        raise StoreError(f"damaged: {fault}", where=str(folder / RUN_FILE))
    written, damaged = _read_lines(folder / REQUESTS_FILE, RequestRecord)
    requests = sound_requests(written)
    damaged += len(written) - len(requests)
    samples, damaged_samples = _read_samples(folder / SAMPLES_FILE)
    return TrialRecord(
        run=run,
        requests=tuple(requests),
        gpu_samples=tuple(samples["gpu"]),
        process_samples=tuple(samples["process"]),
        engine_samples=tuple(samples["engine"]),
        client_samples=tuple(samples["client"]),
        cache_samples=tuple(samples["cache"]),
        damaged_lines=damaged + damaged_samples,
    )


def is_sealed(run_folder: Path, trial_id: str) -> bool:
    """Whether this trial was measured to its end."""
    path = run_folder / trial_id / RUN_FILE
    return path.is_file() and _decode_run(path).status == "sealed"


class TrialFolder:
    """The open folder of one trial: append while it runs, seal at the end.

    Opening it writes ``run.json`` with the status it is given (``started``). An earlier attempt
    that was not sealed is moved aside to ``<trial-id>.attempt-N``, never overwritten.
    """

    def __init__(self, run_folder: Path, run: Run) -> None:
        self.path = run_folder / run.trial.trial_id
        self._run = run
        self._requests: IO[bytes] | None = None
        self._samples: IO[bytes] | None = None

    def __enter__(self) -> Self:
        try:
            self._set_earlier_attempt_aside()
            self.path.mkdir(parents=True)
            _replace_file(self.path / RUN_FILE, _pretty(self._run))
            self._requests = (self.path / REQUESTS_FILE).open("ab", buffering=0)
            self._samples = (self.path / SAMPLES_FILE).open("ab")
        except OSError as error:
            raise _cannot_write(self.path, error) from error
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        faults = []
        for stream in (self._requests, self._samples):
            try:
                if stream is not None:
                    stream.close()
            except OSError as fault:
                # Samples that were still in memory, and no room for them.
                faults.append(_cannot_write(self.path, fault))
        if faults and error is None:
            raise faults[0]

    def _set_earlier_attempt_aside(self) -> None:
        if not self.path.exists():
            return
        number = 1
        while (aside := self.path.with_name(f"{self.path.name}.attempt-{number}")).exists():
            number += 1
        self.path.rename(aside)

    @property
    def log_path(self) -> Path:
        """Where the server's log of this trial lies."""
        return self.path / LOG_FILE

    def append_request(self, record: RequestRecord) -> None:
        """Write one finished request at once."""
        self._append(self._requests, _encode(record) + b"\n", REQUESTS_FILE)

    def append_sample(self, sample: Sample) -> None:
        """Write one telemetry sample; flushed by the writer's buffer and at the seal."""
        kind = _KIND_OF[type(sample)].encode()
        line = b'{"kind":"' + kind + b'","sample":' + _encode(sample) + b"}\n"
        self._append(self._samples, line, SAMPLES_FILE)

    def seal(self, run: Run) -> None:
        """Close the record: everything on disk, then ``run.json`` replaced as the last act."""
        try:
            if self._samples is not None:
                self._samples.flush()
        except OSError as error:
            raise _cannot_write(self.path / SAMPLES_FILE, error) from error
        self._run = run
        _replace_file(self.path / RUN_FILE, _pretty(run))

    def seal_with(self, **changes: Any) -> Run:
        """Seal with some fields of the started run changed; returns what was written."""
        self.seal(replace(self._run, **changes))
        return self._run

    def _append(self, stream: IO[bytes] | None, line: bytes, name: str) -> None:
        if stream is None:
            raise StoreError("the trial's folder is not open", where=str(self.path / name))
        try:
            written = stream.write(line)
        except OSError as error:
            raise _cannot_write(self.path / name, error) from error
        if written != len(line):
            # An unbuffered write to a disk that is all but full may end in the middle of a line.
            raise _cannot_write(self.path / name, OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))


def write_whole(path: Path, content: bytes | str) -> None:
    """Put ``content`` (text as UTF-8) in the place of ``path``, whole or not at all.

    It is written beside and moved; two processes may do so at once, and the later one's stays.

    Raises:
        OSError: it can't be written; what lay there is untouched, and nothing else is left.
    """
    beside = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        with beside.open("wb") as stream:
            stream.write(content.encode() if isinstance(content, str) else content)
            stream.flush()
            os.fsync(stream.fileno())
        beside.replace(path)
    except OSError:
        with suppress(OSError):
            beside.unlink()
        raise


def _replace_file(path: Path, content: bytes) -> None:
    try:
        write_whole(path, content)
    except OSError as error:
        raise _cannot_write(path, error) from error


def _cannot_write(path: Path, error: OSError) -> StoreError:
    return StoreError(
        f"can't write: {error.strerror}",
        where=str(path),
        next_move="free some space or choose another folder with --out; what is already "
        "measured is kept, and `--resume` goes on from there",
    )


def _pretty(value: Any) -> bytes:
    return msgspec.json.format(_encode(value), indent=2) + b"\n"


_encoder = msgspec.json.Encoder()


def _encode(record: Any) -> bytes:
    """A record as JSON; halves of surrogate pairs, which no file can hold, become U+FFFD.

    Every door takes them out of other people's text. One that does not must not cost what was
    measured.
    """
    try:
        return _encoder.encode(record)
    except UnicodeEncodeError:
        return _encoder.encode(_encodable(msgspec.to_builtins(record)))


def _encodable(value: Any) -> Any:
    match value:
        case str():
            return _SURROGATE.sub(REPLACEMENT, value)
        case dict():
            return {_encodable(key): _encodable(item) for key, item in value.items()}
        case list() | tuple():
            return [_encodable(item) for item in value]
        case _:
            return value


def _decode_run(path: Path) -> Run:
    """A trial's head; what its server said of itself in another shape is unknown, as if unsaid."""
    try:
        return _decode(path, Run)
    except StoreError as error:
        damage = error
    wrong = [key for key in ("granted", "engine_version") if f"$.server.{key}" in str(damage)]
    if not wrong:
        raise damage
    stored = _decode(path, dict[str, Any])
    stored["server"] = {k: v for k, v in stored["server"].items() if k not in wrong}
    try:
        return msgspec.convert(stored, Run)
    except msgspec.ValidationError:
        raise damage from None


def _decode(path: Path, kind: type[T]) -> T:
    try:
        raw = path.read_bytes()
        _check_version(raw, path)
        return msgspec.json.decode(raw, type=kind)
    except OSError as error:
        raise StoreError(f"can't read: {error.strerror}", where=str(path)) from error
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise StoreError(f"damaged: {error}", where=str(path)) from error


def _check_version(raw: bytes, path: Path) -> None:
    version = msgspec.json.decode(raw, type=_Versioned).schema_version
    if version > SCHEMA_VERSION:
        raise StoreError(
            f"written by a newer kvbench (schema {version}; this one reads up to {SCHEMA_VERSION})",
            where=str(path),
            next_move="update kvbench",
        )


class _Versioned(msgspec.Struct):
    schema_version: int


def _read_lines(path: Path, kind: type[T]) -> tuple[list[T], int]:
    if not path.is_file():
        return [], 0
    decoder = msgspec.json.Decoder(kind)
    records: list[T] = []
    damaged = 0
    with path.open("rb") as stream:
        for line in stream:
            try:
                records.append(decoder.decode(line))
            except (msgspec.MsgspecError, UnicodeDecodeError):
                damaged += 1
    return records, damaged


class _StoredSample(msgspec.Struct):
    kind: str
    sample: msgspec.Raw


def _read_samples(path: Path) -> tuple[dict[str, list[Any]], int]:
    decoders = {name: msgspec.json.Decoder(kind) for name, kind in _SAMPLE_KINDS.items()}
    samples: dict[str, list[Any]] = {name: [] for name in _SAMPLE_KINDS}
    stored, damaged = _read_lines(path, _StoredSample)
    for line in stored:
        try:
            samples[line.kind].append(decoders[line.kind].decode(line.sample))
        except (KeyError, msgspec.MsgspecError):
            damaged += 1
    return samples, damaged


def read_text_tail(path: Path, max_bytes: int = 8192) -> str:
    """The end of a text file (a server's log), decoded leniently; empty if there is none."""
    try:
        with path.open("rb") as stream:
            stream.seek(0, os.SEEK_END)
            stream.seek(max(0, stream.tell() - max_bytes))
            return stream.read().decode("utf-8", errors="replace")
    except OSError:
        return ""


def sealed_trials(run_folder: Path, trial_ids: Sequence[str]) -> frozenset[str]:
    """Those of the trials that are sealed."""
    return frozenset(trial_id for trial_id in trial_ids if is_sealed(run_folder, trial_id))


def find_unfinished(root: Path, scenario_slug: str, trial_ids: Sequence[str]) -> Path | None:
    """The latest run of exactly these trials that has some left to measure; None if none has."""
    folder = _latest_of(root, scenario_slug, trial_ids)
    return folder if folder is not None and not _is_complete(folder) else None


def find_complete(root: Path, scenario_slug: str, trial_ids: Sequence[str]) -> Path | None:
    """The latest run of exactly these trials if none is left to measure, else None."""
    folder = _latest_of(root, scenario_slug, trial_ids)
    return folder if folder is not None and _is_complete(folder) else None


def _latest_of(root: Path, scenario_slug: str, trial_ids: Sequence[str]) -> Path | None:
    folders = reversed(runs_of(root, scenario_slug))
    return next((f for f in folders if read_manifest(f).trial_ids == tuple(trial_ids)), None)


def _is_complete(folder: Path) -> bool:
    bench = read_manifest(folder)
    sealed = sealed_trials(folder, bench.trial_ids)
    return len(sealed) == len(bench.trial_ids) and not _quality_unfinished(folder, bench)


def _quality_unfinished(folder: Path, bench: BenchRecord) -> bool:
    """Whether answer quality was asked for, begun or due, and not brought to its end."""
    if not bench.scenario.get("quality"):
        return False
    heads = (_decode(path, QualityPass) for path in _pass_files(folder))
    return bench.status != "finished" or any(head.status != "sealed" for head in heads)


def read_run(run_folder: Path, trial_id: str) -> Run | None:
    """One trial's ``run.json`` without its requests and samples; None if it was not begun."""
    path = run_folder / trial_id / RUN_FILE
    return with_sound_pool(_decode_run(path)) if path.is_file() else None


# ── answer quality ──────────────────────────────────────────────────────────────────────────


class LineFile:
    """A file of JSON lines that is appended to, one whole line at a time."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def append(self, record: Any) -> None:
        """Write one record, on disk before the call returns."""
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("ab") as stream:
                # A line that a kill cut off must not swallow the next one.
                cut_off = stream.tell() > 0 and not self._ends_a_line()
                stream.write((b"\n" if cut_off else b"") + _encode(record) + b"\n")
        except OSError as error:
            raise _cannot_write(self._path, error) from error

    def _ends_a_line(self) -> bool:
        with self._path.open("rb") as stream:
            stream.seek(-1, os.SEEK_END)
            return stream.read(1) == b"\n"


def answers_file(run_folder: Path, pass_id: str) -> LineFile:
    """Where the answers of one quality pass are kept."""
    return LineFile(_pass_folder(run_folder, pass_id) / ANSWERS_FILE)


def scores_file(run_folder: Path, pass_id: str) -> LineFile:
    """Where the scores of one quality pass are kept."""
    return LineFile(_pass_folder(run_folder, pass_id) / SCORES_FILE)


def judgements_file(run_folder: Path, judge_id: str) -> LineFile:
    """Where one judge's verdicts are kept."""
    return LineFile(_judge_folder(run_folder, judge_id) / JUDGEMENTS_FILE)


def write_prompts(run_folder: Path, prompts: Sequence[QualityPrompt]) -> None:
    """Write the questions of a run, all at once."""
    _make_folder(run_folder / QUALITY_FOLDER)
    lines = b"".join(_encode(prompt) + b"\n" for prompt in prompts)
    _replace_file(run_folder / QUALITY_FOLDER / PROMPTS_FILE, lines)


def write_pass(run_folder: Path, head: QualityPass) -> None:
    """Write (or replace) the head of one quality pass."""
    folder = _pass_folder(run_folder, head.pass_id)
    _make_folder(folder)
    _replace_file(folder / PASS_FILE, _pretty(head))


def write_judge(run_folder: Path, head: JudgeRun) -> None:
    """Write (or replace) the head of one judge's work."""
    folder = _judge_folder(run_folder, head.judge_id)
    _make_folder(folder)
    _replace_file(folder / JUDGE_FILE, _pretty(head))


def read_quality(run_folder: Path) -> QualityRecords:
    """Read all that is stored of a run's answer quality; empty where none was measured.

    Raises:
        StoreError: it was written by a newer kvbench, or a head is damaged.
    """
    folder = run_folder / QUALITY_FOLDER
    prompts, damaged = _sound_lines(folder / PROMPTS_FILE, QualityPrompt, is_sound_prompt)
    passes = [read_pass(path) for path in _pass_files(run_folder)]
    judges = [_read_judge(path) for path in sorted(folder.glob(f"{JUDGE_PREFIX}*/{JUDGE_FILE}"))]
    return QualityRecords(
        prompts=tuple(prompts),
        passes=tuple(record for record, _ in passes),
        judges=tuple(record for record, _ in judges),
        damaged_lines=damaged + sum(count for _, count in (*passes, *judges)),
    )


def read_pass(path: Path) -> tuple[PassRecord, int]:
    """Read one pass from its head's path, and count the lines that were cut off."""
    folder = path.parent
    answers, damaged = _sound_lines(folder / ANSWERS_FILE, QualityAnswer, is_sound_answer)
    scores, damaged_scores = _sound_lines(folder / SCORES_FILE, QualityScore, is_sound_score)
    record = PassRecord(_decode(path, QualityPass), tuple(answers), tuple(scores))
    return record, damaged + damaged_scores


def _read_judge(path: Path) -> tuple[JudgeRecord, int]:
    lines, damaged = _sound_lines(path.parent / JUDGEMENTS_FILE, Judgement, is_sound_judgement)
    return JudgeRecord(_decode(path, JudgeRun), tuple(lines)), damaged


def _sound_lines(path: Path, kind: type[T], is_sound: Callable[[T], bool]) -> tuple[list[T], int]:
    """The lines that can be true, and how many others there are."""
    written, damaged = _read_lines(path, kind)
    sound = [record for record in written if is_sound(record)]
    return sound, damaged + len(written) - len(sound)


def _pass_files(run_folder: Path) -> list[Path]:
    return sorted((run_folder / QUALITY_FOLDER).glob(f"*/{PASS_FILE}"))


def _pass_folder(run_folder: Path, pass_id: str) -> Path:
    return run_folder / QUALITY_FOLDER / pass_id


def _judge_folder(run_folder: Path, judge_id: str) -> Path:
    return run_folder / QUALITY_FOLDER / f"{JUDGE_PREFIX}{judge_id}"


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _cannot_write(folder, error) from error
