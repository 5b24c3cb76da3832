"""Pairs of answers put to a judge behind any OpenAI-compatible endpoint; each verdict kept at once.

Method: a chat completion at temperature 0 with the task, the passage and two answers named A and
B, asking for JSON (``verdict`` A, B or tie, and a short ``reason``), by schema where the server
takes one. An answer that is no such JSON is counted as malformed and asked for again, twice at
most; what failed in transit is sent again, but not what got no reply in time: a judge that is
silent is given up. A server that refuses the schema is asked without it. Questions that already
have a verdict are not put again.

The key goes into the request's header and nowhere else: not into records, logs or messages, even
where a server repeats it in a refusal, a reply or a reason.

Not covered: which pairs (``harness.workload.judge_pairs``), and what the verdicts amount to.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, cast
from urllib.parse import urlsplit, urlunsplit

from harness.quality.client import Replies, open_client, without_key
from harness.record import Judgement
from harness.units import Seconds
from harness.workload.judge_pairs import Question

if TYPE_CHECKING:
    from openai import OpenAI

#: How often a malformed answer is asked for again.
ATTEMPTS = 3
VERDICT_TOKENS = 120
#: So many questions are put at once.
JUDGE_CONCURRENCY = 4
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
_OBJECT = re.compile(r"\{.*?\}", re.DOTALL)


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
    client = open_client(target.url, target.api_key, target.timeout_s)
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
        malformed, text = 0, ""
        for attempt in range(1, ATTEMPTS + 1):
            try:
                said, usage = self._say(question)
            except APIError as error:
                why = f"{type(error).__name__}: {self._clean(error.message)}"
                return _judgement(question, None, None, attempt, malformed, spent, why)
            spent.append(usage)
            found = parse_verdict(said)
            if found is not None:
                verdict, reason = found
                told = self._clean(reason) if reason is not None else None
                return _judgement(question, verdict, told, attempt, malformed, spent, None)
            malformed += 1
            text = without_key(said, self.target.api_key)
        why = f"no verdict in {text[:200]!r}"
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
        lines = without_key(message, self.target.api_key).splitlines()
        return lines[0][:300] if lines else "nothing was said"


def _text_and_usage(reply: Any) -> tuple[str, tuple[int | None, int | None]]:
    """What was said and what it cost; a reply of another form says nothing."""
    try:
        text = reply["choices"][0]["message"]["content"]
        usage = reply.get("usage") or {}
        counts = _count(usage.get("prompt_tokens")), _count(usage.get("completion_tokens"))
        return _storable(str(text or "")), counts
    except (KeyError, IndexError, TypeError, AttributeError):
        return "", (None, None)


def _count(value: Any) -> int | None:
    """A count of tokens as a record may hold it; what a judge writes instead is unknown."""
    is_count = isinstance(value, int) and not isinstance(value, bool)
    return value if is_count and 0 <= value < 1 << 60 else None


def _storable(text: str) -> str:
    """The text without halves of surrogate pairs, which JSON can write and no file can hold."""
    return text.encode("utf-8", "replace").decode("utf-8")


def parse_verdict(text: str) -> tuple[Literal["A", "B", "tie"], str | None] | None:
    """The verdict in a judge's answer: a JSON object, bare or within other text."""
    for candidate in (text, *_OBJECT.findall(text)):
        try:
            value = json.loads(candidate)
        except (ValueError, RecursionError):
            # No JSON, a number of thousands of digits, or brackets without end.
            continue
        if isinstance(value, dict) and value.get("verdict") in ("A", "B", "tie"):
            reason = value.get("reason")
            verdict = cast("Literal['A', 'B', 'tie']", value["verdict"])
            return verdict, _storable(str(reason)) if reason is not None else None
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
