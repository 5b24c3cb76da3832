"""Quality records as a bench would leave them, answered by toy models without any server."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from harness.quality.client import _answer, _score
from harness.record import PassRecord, QualityKind, QualityPass, QualityPrompt, QualityRecords
from tests.quality.toy import Toy, ids_of

_WORDS = "The keeper walks along the quiet harbour and counts every lantern of the evening"


def prompts() -> tuple[QualityPrompt, ...]:
    """Six tasks and four needles."""
    made = []
    for index in range(10):
        needle = index >= 6
        code = str(4000 + index)
        fact = f" The access code of the red boat is {code}." if needle or index % 2 else ""
        text = f"{_WORDS} number {index}.{fact} {_WORDS}."
        asks = bool(fact)
        ask = "What is the access code of the red boat?" if asks else "Summarise the text above."
        made.append(
            QualityPrompt(
                index=index,
                task="needle" if needle else ("extract" if asks else "summarise"),
                source=f"s{index}",
                prompt_token_ids=tuple(ids_of(f"{text}\n\n{ask}")),
                instruction=ask,
                passage=text,
                expected=(code,) if asks else (),
                context_tokens=(64, 96)[index % 2],
                depth=(0.0, 1.0)[index // 2 % 2] if needle else None,
            )
        )
    return tuple(made)


@lru_cache(maxsize=8)
def _record(toy: Toy, kind: QualityKind, reference: Toy) -> tuple[PassRecord, ...]:
    answers, scores = [], []
    for prompt in prompts():
        ids = list(prompt.prompt_token_ids)
        said = toy.handle("/completions", {"prompt": ids, "max_tokens": 24, "return_token_ids": 1})
        answers.append(_answer(prompt.index, said[1]))
        if prompt.task != "needle":
            base = reference.generate(ids, 24)
            listed = toy.prompt_logprobs([*ids, *base], 20)
            scores.append(_score(prompt.index, listed, ids, base))
    variant = "fp8" if kind == "variant" else "fp16"
    name = f"variant-{variant}" if kind == "variant" else kind
    head = QualityPass(1, name, kind, variant, "sealed", (0,), 1, reverse=False)
    return (PassRecord(head, tuple(answers), tuple(scores)),)


def toy_records(
    variant: Toy,
    *,
    with_floor: bool = True,
    log_warnings: tuple[str, ...] = (),
    left_out: tuple[str, ...] = (),
) -> QualityRecords:
    """A baseline, itself again, and ``variant``."""
    base = Toy()
    (first,) = _record(base, "reference", base)
    (again,) = _record(base, "self", base)
    (other,) = _record(variant, "variant", base)
    first = _with(first, left_out=left_out)
    other = _with(other, log_warnings=log_warnings)
    return QualityRecords(prompts(), (first, *((again,) if with_floor else ()), other))


def _with(record: PassRecord, **changes: object) -> PassRecord:
    return replace(record, head=replace(record.head, **changes))  # type: ignore[arg-type]
