"""Make test data of a stored run: small, and without anything that tells of the machine.

    .venv/bin/python tests/data/trim_run.py results/fp8_vs_fp16/RUN [RUN…]

writes ``tests/data/runs/<scenario>.tar.xz`` per run. What is left suffices to build a page that
shows what the whole run's page shows; figures of answer quality come out a little different, since
only a share of the scored positions is kept, so nothing is published from these files.

Kept: every trial and request, each chunk's time to a tenth of a millisecond. Thinned: samples
(those at which the pool's use, the queue or a counter is at an extreme stay), scored positions,
the likeliest tokens beside each. Cut: answers' text, logs but for the end of a failed trial's.
Scrubbed: paths (only the last part stays), addresses other than loopback, the kernel's name.
"""

from __future__ import annotations

import io
import lzma
import re
import sys
import tarfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from harness import store

TARGET = Path(__file__).parent / "runs"
#: Samples of one kind in one trial.
MAX_SAMPLES = 90
#: Scored positions within one prompt (those of the answer all stay), and likeliest tokens at each.
MAX_POSITIONS = 24
MAX_TOP = 5
MAX_TEXT = 60
LOG_LINES = 12

_PATH = re.compile(r"(?<![\w:/.~])~?(?:/[\w.@+~-]+){2,}/?")
_ADDRESS = re.compile(r"\b(?!127\.0\.0\.1\b|0\.0\.0\.0\b)\d{1,3}(?:\.\d{1,3}){3}\b")
_KERNEL = re.compile(r"\bLinux-[\w.-]+")
#: Times and log-probabilities: a tenth of a millisecond, of a nat's thousandth, is enough.
_DIGITS = 4


def scrub(value: Any) -> Any:
    """The same value with paths, addresses and the kernel's name taken out of every text."""
    if isinstance(value, str):
        value = _PATH.sub(lambda match: "/srv/" + match[0].rstrip("/").rsplit("/", 1)[1], value)
        return _KERNEL.sub("Linux-x86_64", _ADDRESS.sub("192.0.2.1", value))
    if isinstance(value, dict):
        return {scrub(key): scrub(each) for key, each in value.items()}
    if isinstance(value, list):
        return [scrub(each) for each in value]
    return value


def rounded(value: Any) -> Any:
    """The same value with every fraction rounded."""
    if isinstance(value, float):
        return round(value, _DIGITS)
    if isinstance(value, dict):
        return {key: rounded(each) for key, each in value.items()}
    if isinstance(value, list):
        return [rounded(each) for each in value]
    return value


def files_of(run: Path) -> Iterator[tuple[str, bytes]]:
    """The trimmed files of a run, named as in its folder."""
    bench = _json(run / store.BENCH_FILE)
    yield store.BENCH_FILE, _pretty(scrub(bench))
    for trial in bench["trial_ids"]:
        folder = run / trial
        if not (folder / store.RUN_FILE).is_file():
            continue
        facts = scrub(_json(folder / store.RUN_FILE))
        yield f"{trial}/{store.RUN_FILE}", _pretty(facts)
        yield (
            f"{trial}/{store.REQUESTS_FILE}",
            _lines(map(_request, _read(folder, store.REQUESTS_FILE))),
        )
        yield f"{trial}/{store.SAMPLES_FILE}", _lines(_samples(_read(folder, store.SAMPLES_FILE)))
        if facts["status"] != "sealed":
            tail = store.read_text_tail(folder / store.LOG_FILE).splitlines()[-LOG_LINES:]
            yield f"{trial}/{store.LOG_FILE}", scrub("\n".join(tail) + "\n").encode()
    yield from _quality(run)


def _quality(run: Path) -> Iterator[tuple[str, bytes]]:
    for path in sorted((run / store.QUALITY_FOLDER).rglob("*.json*")):
        name = path.relative_to(run).as_posix()
        if path.suffix == ".json":
            yield name, _pretty(scrub(_json(path)))
        else:
            change = {store.SCORES_FILE: _score, store.PROMPTS_FILE: _prompt}.get(path.name, _cut)
            yield name, _lines(map(change, _read(path.parent, path.name)))


def _request(record: dict[str, Any]) -> dict[str, Any]:
    return _cut(_rounded(record))


def _rounded(record: dict[str, Any]) -> dict[str, Any]:
    short: dict[str, Any] = rounded(record)
    return short


def _cut(record: dict[str, Any]) -> dict[str, Any]:
    kept = {
        key: value[:MAX_TEXT] if key in ("text", "passage", "instruction") and value else value
        for key, value in record.items()
    }
    clean: dict[str, Any] = scrub(kept)
    return clean


def _prompt(record: dict[str, Any]) -> dict[str, Any]:
    # How long a prompt is counts for a page; which tokens it has does not.
    return {**_cut(record), "prompt_token_ids": [0] * len(record["prompt_token_ids"])}


def _score(record: dict[str, Any]) -> dict[str, Any]:
    places = len(record["positions"])
    # By position, not by count: a variant scored at few places must keep those of the others.
    answer = record["prompt_length"]
    stride = max(1, answer // MAX_POSITIONS)
    kept = [at for at, p in enumerate(record["positions"]) if p >= answer or p % stride == 0]
    short = dict(record)
    for key in ("positions", "logprobs", "ranks", "top_ids", "top_logprobs"):
        values = record.get(key) or []
        short[key] = [values[at] for at in kept] if len(values) == places else values
    for key in ("top_ids", "top_logprobs"):
        short[key] = [each[:MAX_TOP] for each in short[key]]
    return _rounded(short)


def _samples(stored: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    kinds: dict[str, list[dict[str, Any]]] = {}
    for line in stored:
        kinds.setdefault(line["kind"], []).append(line)
    for lines in kinds.values():
        yield from (rounded(lines[at]) for at in sorted(_chosen(lines)))


def _chosen(lines: list[dict[str, Any]]) -> set[int]:
    """Evenly spaced samples, both ends, the extremes, and both sides of every preemption."""
    stride = max(1, -(-len(lines) // MAX_SAMPLES))
    chosen = {*range(0, len(lines), stride), len(lines) - 1}
    for key, value in lines[0]["sample"].items():
        if isinstance(value, int | float) and not isinstance(value, bool):
            seen = [line["sample"].get(key) or 0 for line in lines]
            chosen |= {seen.index(max(seen)), seen.index(min(seen))}
    totals = [line["sample"].get("preemptions_total") or 0 for line in lines]
    for at in range(1, len(totals)):
        if totals[at] > totals[at - 1]:
            chosen |= {at - 1, at}
    return chosen


def _json(path: Path) -> Any:
    return msgspec.json.decode(path.read_bytes())


def _read(folder: Path, name: str) -> Iterator[dict[str, Any]]:
    path = folder / name
    if path.is_file():
        for line in path.read_bytes().splitlines():
            try:
                yield msgspec.json.decode(line)
            except msgspec.DecodeError:
                continue


def _pretty(value: Any) -> bytes:
    return msgspec.json.format(msgspec.json.encode(value), indent=1) + b"\n"


def _lines(records: Iterable[dict[str, Any]]) -> bytes:
    return b"".join(msgspec.json.encode(record) + b"\n" for record in records)


def write(run: Path) -> Path:
    """Write the archive of one run and return its path; the same run gives the same bytes."""
    TARGET.mkdir(exist_ok=True)
    path = TARGET / f"{_json(run / store.BENCH_FILE)['scenario_name']}.tar.xz"
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name, content in files_of(run):
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    path.write_bytes(lzma.compress(packed.getvalue(), preset=9 | lzma.PRESET_EXTREME))
    return path


if __name__ == "__main__":
    for given in sys.argv[1:]:
        made = write(Path(given))
        sys.stdout.write(f"{made}: {made.stat().st_size:,} bytes\n")
