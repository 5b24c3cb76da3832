"""A stored run put before a judge: the baseline's own server during the run, or anybody's later.

Method: the questions are drawn from the stored answers and the scenario's seed, so the same run
gives the same questions to every judge; verdicts are appended as they come, and a judge that was
interrupted goes on where it stopped. The key comes from the environment and is stored nowhere.

Not covered: whether the judge is any good (``harness.analysis.judging``).
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import time
from collections.abc import Callable
from pathlib import Path

from harness.analysis.retrieval import NEEDLE_TASKS
from harness.errors import InputError, NotFound
from harness.quality.judge import JudgeTarget, bare_url, judge_all
from harness.record import (
    SCHEMA_VERSION,
    Judgement,
    JudgeRecord,
    JudgeRun,
    PassRecord,
    QualityRecords,
)
from harness.scenario import slugify
from harness.scenario.address import address_fault
from harness.scenario.load import JUDGE_KEY_VARIABLE
from harness.store import judgements_file, read_manifest, read_quality, write_judge
from harness.units import Fraction
from harness.workload.judge_pairs import Question, questions

SELF_JUDGE = "self"
#: Where a judge's key is looked for, in this order.
KEY_VARIABLES = (JUDGE_KEY_VARIABLE, "OPENAI_API_KEY")


def api_key() -> str | None:
    """The judge's key, from the environment alone.

    Raises:
        InputError: it holds what no header can carry.
    """
    for name in KEY_VARIABLES:
        key = os.environ.get(name)
        if key and not (key.isascii() and key.isprintable() and key == key.strip()):
            raise InputError(
                "a key is one word of plain characters; this one has others, or blanks around it",
                where=name,
                next_move="export it again, without the end of its line",
            )
        if key:
            return key
    return None


def check_url(url: str) -> str:
    """Return a judge's URL if it can be asked there, and stored.

    Raises:
        InputError: no URL of a server, or one that carries a secret.
    """
    fault = address_fault(url, "judge", KEY_VARIABLES[0])
    if fault is not None:
        raise InputError(
            fault.what, where="--judge-url", legal=fault.legal, next_move=fault.next_move
        )
    return url.rstrip("/")


def judge_stored(
    folder: Path,
    target: JudgeTarget,
    *,
    margin: Fraction,
    is_self: bool = False,
    progress: Callable[[int, int], None] = lambda _done, _total: None,
    death: Callable[[], str | None] = lambda: None,
) -> JudgeRun:
    """Have the answers of a stored run judged; returns the sealed or failed record.

    Raises:
        NotFound: the run holds no answers to judge.
        StoreError: verdicts can't be written.
    """
    began = time.monotonic()
    records = read_quality(folder)
    asked = _questions(folder, records)
    judge_id = SELF_JUDGE if is_self else _judge_id(target, records)
    before = next((j for j in records.judges if j.head.judge_id == judge_id), None)
    head = JudgeRun(
        schema_version=SCHEMA_VERSION,
        judge_id=judge_id,
        model=target.model,
        url=bare_url(target.url),
        is_self=is_self,
        margin=margin,
        status="started",
        wall_s=before.head.wall_s if before is not None else None,
    )
    write_judge(folder, head)
    done = _usable(before, asked)
    keep = judgements_file(folder, judge_id)
    reason = judge_all(target, asked, done, keep.append, progress, death)
    head = dataclasses.replace(
        head,
        status="sealed" if reason is None else "failed",
        reason=reason,
        wall_s=(head.wall_s or 0.0) + time.monotonic() - began,
    )
    write_judge(folder, head)
    return head


def _judge_id(target: JudgeTarget, records: QualityRecords) -> str:
    """The folder of a judge: its model's name, with more to it where another judge has that."""
    name, me = slugify(target.model), (target.model, bare_url(target.url))
    others = {
        judge.head.judge_id
        for judge in records.judges
        if (judge.head.model, judge.head.url) != me
        and any(judgement.verdict is not None for judgement in judge.judgements)
    }
    if name not in (others | {SELF_JUDGE}):
        return name
    return f"{name}-{hashlib.sha256(repr(me).encode()).hexdigest()[:8]}"


def _usable(before: JudgeRecord | None, asked: tuple[Question, ...]) -> list[Judgement]:
    wanted = {(question.pair.pair_id, question.order) for question in asked}
    found = before.judgements if before is not None else ()
    return [j for j in found if (j.pair_id, j.order) in wanted]


def _questions(folder: Path, records: QualityRecords) -> tuple[Question, ...]:
    reference = next((p for p in records.passes if p.head.kind == "reference"), None)
    variants = {
        record.head.variant: _texts(record)
        for record in records.passes
        if record.head.kind == "variant" and record.head.status == "sealed"
    }
    if reference is None or not variants:
        raise NotFound(
            "the run holds no answers of a baseline and a variant to judge",
            where=str(folder),
            next_move="run a scenario with `quality: on`",
        )
    long = [prompt for prompt in records.prompts if prompt.task not in NEEDLE_TASKS]
    seed = read_manifest(folder).scenario.get("seed")
    needles = [prompt for prompt in records.prompts if prompt.task in NEEDLE_TASKS]
    drawn = seed if isinstance(seed, int) else 0
    return questions(long, _texts(reference), variants, drawn, needles)


def _texts(record: PassRecord) -> dict[int, str]:
    return {a.index: a.text for a in record.answers if a.error is None and a.text is not None}
