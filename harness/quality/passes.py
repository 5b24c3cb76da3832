"""One server answers the questions and scores the baseline's answers; each record at once on disk.

Method: greedy answers to every prompt; then, for the prompts that are no needles, the baseline's
prompt and answer are scored token by token (teacher-forced), whoever is asked. Order and batch
are the caller's choice: one at a time, in order, for baseline and variants; reversed and several
at once for the baseline's second pass, whose difference to the first is the noise floor. What is
already recorded without an error is not asked again. A pass ends early when the server dies or
falls silent: each further question would cost its whole time limit.

Not covered: starting servers, and which pass is due (``harness.execute.quality``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import TypeVar

from harness.errors import every_one_failed
from harness.quality.client import EngineClient
from harness.record import QualityAnswer, QualityPrompt, QualityScore
from harness.units import Tokens

NEEDLE_TASKS = ("needle", "multikey")

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Asking:
    """How one pass is played, and who is told.

    ``death`` says why the server is gone (None while it lives); ``progress`` gets done and total.
    ``behind``: the server cuts a prompt only once it is computed, so tails are scored by decoding.
    """

    concurrency: int
    reverse: bool
    answer_tokens: Tokens
    needle_answer_tokens: Tokens
    death: Callable[[], str | None] = lambda: None
    progress: Callable[[int, int], None] = lambda _done, _total: None
    behind: bool = False


def ask_all(
    client: EngineClient,
    prompts: Sequence[QualityPrompt],
    done: Iterable[QualityAnswer],
    asking: Asking,
    keep: Callable[[QualityAnswer], None],
) -> str | None:
    """Have every prompt answered; returns why it could not be done, None if it was."""
    have = {answer.index for answer in done if answer.error is None}
    left = _ordered((prompt for prompt in prompts if prompt.index not in have), asking)

    def ask(prompt: QualityPrompt) -> QualityAnswer:
        needle = prompt.task in NEEDLE_TASKS
        limit = asking.needle_answer_tokens if needle else asking.answer_tokens
        return client.answer(prompt.index, prompt.prompt_token_ids, limit)

    return _play(left, ask, keep, asking, client.silence)


def score_all(
    client: EngineClient,
    prompts: Sequence[QualityPrompt],
    reference: Mapping[int, QualityAnswer],
    done: Iterable[QualityScore],
    asking: Asking,
    keep: Callable[[QualityScore], None],
) -> str | None:
    """Have the baseline's answers (``reference``, by prompt) scored; returns as ``ask_all``."""
    have = {score.index for score in done if score.error is None}
    due = [
        (prompt, reference[prompt.index].token_ids or ())
        for prompt in prompts
        if prompt.task not in NEEDLE_TASKS
        and prompt.index not in have
        and prompt.index in reference
        and reference[prompt.index].error is None
    ]

    def score(pair: tuple[QualityPrompt, tuple[int, ...]]) -> QualityScore:
        prompt, answer = pair
        if asking.behind:
            return client.score_behind(prompt.index, prompt.prompt_token_ids, answer)
        return client.score(prompt.index, prompt.prompt_token_ids, answer)

    return _play(_ordered(due, asking), score, keep, asking, client.silence)


def _ordered(items: Iterable[T], asking: Asking) -> list[T]:
    listed = list(items)
    return listed[::-1] if asking.reverse else listed


R = TypeVar("R", QualityAnswer, QualityScore)


def _play(
    items: Sequence[T],
    ask: Callable[[T], R],
    keep: Callable[[R], None],
    asking: Asking,
    silence: Callable[[], str | None],
) -> str | None:
    """Keep ``concurrency`` requests going; record each as it ends."""
    errors: list[str] = []
    waiting = iter(items)
    finished = 0
    with ThreadPoolExecutor(asking.concurrency) as pool:
        running: set[Future[R]] = set()
        while True:
            while len(running) < asking.concurrency and (item := next(waiting, None)) is not None:
                running.add(pool.submit(ask, item))
            if not running:
                break
            ended, running = wait(running, return_when=FIRST_COMPLETED)
            for future in ended:
                record = future.result()
                keep(record)
                finished += 1
                errors += [record.error] if record.error is not None else []
            asking.progress(finished, len(items))
            if (dead := asking.death()) is not None:
                return f"the server died: {dead}"
            if (silent := silence()) is not None:
                return silent
    return every_one_failed("request", errors, len(items))
