"""Pairs of answers put to a judge behind any OpenAI-compatible endpoint; each verdict kept at once.

Method: a chat completion at temperature 0 with the task, the passage and two answers named A and
B, asking for JSON (``verdict`` A, B or tie, and a short ``reason``), by schema where the server
takes one. An answer that is no such JSON is counted as malformed and asked for again, twice at
most, as is a reply that is no JSON at all; what failed in transit is sent again, but not what got
no reply in time: a judge that is silent is given up, as is one whose replies are too large. A
server that refuses the schema is asked without it. Questions that already have a verdict are not
put again.

The key goes into the request's header and nowhere else: not into records, logs or messages, even
where a server repeats it in a refusal, a reply or a reason.

Not covered: which pairs (``harness.workload.judge_pairs``), and what the verdicts amount to.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, cast
from urllib.parse import urlsplit, urlunsplit

from harness.errors import EngineError
from harness.quality.client import (
    NoJsonError,
    Replies,
    count,
    open_client,
    storable,
    without_key,
)
from harness.record import Judgement
from harness.units import Bytes, Seconds
from harness.workload.judge_pairs import Question

if TYPE_CHECKING:
    from openai import APIError, OpenAI

#: How often a malformed answer is asked for again.
ATTEMPTS = 3
VERDICT_TOKENS = 120
#: So many questions are put at once.
JUDGE_CONCURRENCY = 4
#: A reply holds a verdict and one sentence.
MOST_BYTES: Bytes = 4 << 20
#: So many objects in a reply are tried as the verdict.
MOST_OBJECTS = 20
#: So much of a passage is shown; English has four to five characters to a token.
PASSAGE_CHARACTERS = 12_000
#: Of a longer one: its ends, and so many places where the known answer stands, a sentence at least.
MOST_PLACES = 4
SENTENCE_CHARACTERS = 240

_SYSTEM = (
    "You compare two answers, A and B, to the same task. Judge only whether each is correct, "
    "complete, faithful to the given text and readable. Length, style and the order in which they "
    "are shown do not matter. If they are equally good, or the same, the verdict is tie. Reply "
    'with JSON alone: {"verdict": "A" or "B" or "tie", "reason": one short sentence}.'
)
_SCHEMA: dict[str, Any] = {
    "type": "json_schema",
    "json_schema": {
        "name": "verdict",
        "strict": True,
        "schema": {
            "type": "object",
            "properties": {
                "verdict": {"type": "string", "enum": ["A", "B", "tie"]},
                "reason": {"type": "string", "maxLength": 200},
            },
            "required": ["verdict", "reason"],
            "additionalProperties": False,
        },
    },
}
_OBJECT = re.compile(r"\{(?=\s{0,20}\")")


@dataclass(frozen=True, slots=True)
class JudgeTarget:
    """Who judges. ``api_key`` is sent to this server only and never part of a repr or record."""

    url: str
    model: str
    api_key: str | None = field(default=None, repr=False)
    timeout_s: Seconds = 300.0
    concurrency: int = JUDGE_CONCURRENCY
    passage_characters: int = PASSAGE_CHARACTERS


def bare_url(url: str) -> str:
    """A URL without user, password, query or fragment, fit to be stored."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    host = f"[{host}]" if ":" in host else host
    netloc = f"{host}:{parts.port}" if parts.port else host
    return urlunsplit((parts.scheme, netloc, parts.path, "", ""))


def messages(question: Question, passage_characters: int) -> list[dict[str, str]]:
    """The conversation that puts one question; nothing in it tells a control from a real pair."""
    first, second = question.shown
    prompt = question.pair.prompt
    passage = shortened(prompt.passage, passage_characters, prompt.expected)
    text = f"Text:\n{passage}\n\n" if passage.strip() else ""
    shown = f"Answer A:\n{first.strip()}\n\nAnswer B:\n{second.strip()}"
    task = f"Task:\n{prompt.instruction}"
    return [
        {"role": "system", "content": _SYSTEM},
        {"role": "user", "content": f"{text}{task}\n\n{shown}\n\nWhich answer is better?"},
    ]


def shortened(text: str, limit: int, expected: Sequence[str] = ()) -> str:
    """The beginning and the end of a text that is longer than ``limit`` characters.

    What surrounds a known answer (``expected``) is shown too: without it nobody could tell the
    right answer from a wrong one.
    """
    if len(text) <= limit:
        return text
    places = [place for answer in expected for place in _places(text, answer)][:MOST_PLACES]
    if not places:
        half = max(1, limit // 2)
        return f"{text[:half]}\n[…]\n{text[-half:]}"
    third = max(1, limit // 3)
    around = max(SENTENCE_CHARACTERS, third // len(places))
    spans = [(0, third), (len(text) - third, len(text))]
    spans += [(max(0, place - 2 * around // 3), place + around // 3) for place in places]
    return "\n[…]\n".join(text[start:end] for start, end in _joined(spans))


def _places(text: str, answer: str) -> list[int]:
    """Where an answer stands as a word of its own."""
    return [found.start() for found in re.finditer(rf"(?<!\w){re.escape(answer)}(?!\w)", text)]


def _joined(spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Stretches in order, those that touch made one."""
    joined: list[tuple[int, int]] = []
    for start, end in sorted(spans):
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], end))
        else:
            joined.append((start, end))
    return joined


def judge_all(
    target: JudgeTarget,
    questions: Sequence[Question],
    done: Iterable[Judgement],
    keep: Callable[[Judgement], None],
    progress: Callable[[int, int], None] = lambda _done, _total: None,
    death: Callable[[], str | None] = lambda: None,
) -> str | None:
    """Put every question that has no verdict yet; returns why it could not be done."""
    have = {(j.pair_id, j.order) for j in done if j.error is None}
    left = [q for q in questions if (q.pair.pair_id, q.order) not in have]
    client = open_client(target.url, target.api_key, target.timeout_s, MOST_BYTES)
    try:
        return _play(_Asker(client, target), left, keep, progress, death)
    finally:
        client.close()


def _play(
    asker: _Asker,
    questions: Sequence[Question],
    keep: Callable[[Judgement], None],
    progress: Callable[[int, int], None],
    death: Callable[[], str | None],
) -> str | None:
    lost: list[str] = []
    finished = 0
    waiting = iter(questions)
    with ThreadPoolExecutor(asker.target.concurrency) as pool:
        running: set[Future[Judgement]] = set()
        while True:
            for question in waiting:
                running.add(pool.submit(asker.ask, question))
                if len(running) >= asker.target.concurrency:
                    break
            if not running:
                break
            ended, running = wait(running, return_when=FIRST_COMPLETED)
            for future in ended:
                judgement = future.result()
                keep(judgement)
                finished += 1
                lost += [judgement.error] if judgement.malformed == 0 and judgement.error else []
            progress(finished, len(questions))
            if (dead := death()) is not None:
                return f"the judge's server died: {dead}"
            if (silent := asker.silence()) is not None:
                return f"the judge can't be asked: {silent}"
            if len(lost) >= 4 and len(lost) == finished:
                return f"the judge can't be asked: {lost[0]}"
    return f"the judge can't be asked: {lost[0]}" if lost and len(lost) == finished else None


class _Asker:
    """Puts questions to one judge, from several threads."""

    def __init__(self, client: OpenAI, target: JudgeTarget) -> None:
        self.target = target
        self._client = client
        self._replies = Replies(target.timeout_s)
        self._schema = True

    def silence(self) -> str | None:
        """Why nothing more should be asked; None while the judge replies."""
        return self._replies.silence()

    def ask(self, question: Question) -> Judgement:
        """Put one question, again while the answer is malformed."""
        from openai import APIError

        spent: list[tuple[int | None, int | None]] = []
        malformed, why = 0, ""
        for attempt in range(1, ATTEMPTS + 1):
            try:
                said, usage = self._say(question)
            except NoJsonError as error:
                malformed, why = malformed + 1, error.what
                continue
            except (APIError, EngineError) as error:
                lost = self._clean(_told(error))
                return _judgement(question, None, None, attempt, malformed, spent, lost)
            spent.append(usage)
            found = parse_verdict(said)
            if found is not None:
                verdict, reason = found
                told = self._clean(reason) if reason is not None else None
                return _judgement(question, verdict, told, attempt, malformed, spent, None)
            malformed += 1
            why = f"no verdict in {without_key(said, self.target.api_key)[:200]!r}"
        return _judgement(question, None, None, ATTEMPTS, malformed, spent, why)

    def _say(self, question: Question) -> tuple[str, tuple[int | None, int | None]]:
        """One request; without the schema from the first refusal of it on."""
        from openai import BadRequestError

        limit = self.target.passage_characters
        body: dict[str, Any] = {
            "model": self.target.model,
            "messages": messages(question, limit),
            "max_tokens": VERDICT_TOKENS,
            "temperature": 0.0,
        }
        try:
            more = {"response_format": _SCHEMA} if self._schema else {}
            reply = self._replies.send(self._client, "/chat/completions", {**body, **more})
        except BadRequestError as error:
            if not self._schema or "response_format" not in f"{error.message} {error.body}":
                raise
            self._schema = False
            return self._say(question)
        return _text_and_usage(reply)

    def _clean(self, message: str) -> str:
        """The first line of what a server said, without the key; cleaned before it is cut."""
        lines = storable(without_key(message, self.target.api_key)).splitlines()
        return lines[0][:300] if lines else "nothing was said"


def _told(error: APIError | EngineError) -> str:
    if isinstance(error, EngineError):
        return error.what
    return f"{type(error).__name__}: {error.message}"


def _text_and_usage(reply: Any) -> tuple[str, tuple[int | None, int | None]]:
    """What was said and what it cost; a reply of another form says nothing."""
    try:
        text = reply["choices"][0]["message"]["content"]
        usage = reply.get("usage") or {}
        counts = count(usage.get("prompt_tokens")), count(usage.get("completion_tokens"))
        return storable(str(text or "")), counts
    except (KeyError, IndexError, TypeError, AttributeError):
        return "", (None, None)


def parse_verdict(text: str) -> tuple[Literal["A", "B", "tie"], str | None] | None:
    """The verdict in a judge's answer: a JSON object, bare or within other text."""
    decoder = json.JSONDecoder()
    for found in itertools.islice(_OBJECT.finditer(text), MOST_OBJECTS):
        try:
            value, _ = decoder.raw_decode(text, found.start())
        except (ValueError, RecursionError):
            # No JSON, a number of thousands of digits, or brackets without end.
            continue
        if isinstance(value, dict) and value.get("verdict") in ("A", "B", "tie"):
            reason = value.get("reason")
            verdict = cast("Literal['A', 'B', 'tie']", value["verdict"])
            return verdict, storable(str(reason)) if reason is not None else None
    return None


def _judgement(
    question: Question,
    verdict: Literal["A", "B", "tie"] | None,
    reason: str | None,
    attempts: int,
    malformed: int,
    spent: Sequence[tuple[int | None, int | None]],
    error: str | None,
) -> Judgement:
    prompt, output = (
        sum(c for c in counts if c is not None) if any(c is not None for c in counts) else None
        for counts in ([p for p, _ in spent], [o for _, o in spent])
    )
    return Judgement(
        pair_id=question.pair.pair_id,
        kind=question.pair.kind,
        variant=question.pair.variant,
        prompt_index=question.pair.prompt.index,
        order=question.order,
        verdict=verdict,
        reason=reason,
        attempts=attempts,
        malformed=malformed,
        prompt_tokens=prompt,
        output_tokens=output,
        error=error,
    )
