"""One server, asked for what quality needs: tokens, greedy answers, scores of given tokens.

Method: the openai client over plain requests (no streaming; nothing is timed here). A prompt goes
out as token ids, so what a server sees is exactly what was planned. Temperature 0 and never a
seed: a per-request seed ends the engine of vLLM's CPU build. Tokens come from ``/tokenize`` and
``/detokenize``, scores from ``prompt_logprobs``; both are vLLM's, other servers lack them. What
failed in transit is sent again; what got no reply within the time limit is not, since each try
would cost the limit once more, and ``silence`` tells of a server that answers nothing any longer.
A reply may be so large and take so long (``bounded``); one that is no JSON is an ``EngineError``.
Of a reply of another form no record is made that could not be read back.

Not covered: the judge, which may be anybody's server (``judge``).
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from threading import Lock
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from harness.analysis.agreement import TOP_K
from harness.analysis.sanity import OTHER_TOKENS
from harness.errors import EngineError
from harness.plausible import is_sound_answer, is_sound_score
from harness.quality.bounded import NO_COMPRESSION, UnreadableReply, http_library, within
from harness.record import QualityAnswer, QualityScore
from harness.scenario import tail_start
from harness.units import Bytes, Seconds, Tokens

if TYPE_CHECKING:
    from openai import OpenAI

#: Of the context so many places are kept, evenly spread; of the answer all.
CONTEXT_POSITIONS = 256
#: How often a request that failed in transit, or that the server could not take yet, is sent again.
RETRIES = 2
#: Before the second try; twice as long before the next.
FIRST_PAUSE_S: Seconds = 0.5
#: After so many requests in a row without a reply a server counts as silent.
SILENT_AFTER = 2
#: The probabilities of 128 Ki tokens, twenty-one each, take a quarter of it.
MOST_BYTES: Bytes = 1 << 30
#: Where a server writes −∞ in JSON, it writes a number like this one.
_LEAST_LOGPROB = -9999.0
#: What reading a reply of another form than the expected may raise.
_OTHER_FORM = (LookupError, TypeError, ValueError, AttributeError, ArithmeticError)


def is_local(url: str) -> bool:
    """Whether a URL names this machine, which no proxy of the environment is for."""
    host = urlsplit(url).hostname or ""
    return host in ("localhost", "::1") or host.startswith("127.")


def open_client(
    base_url: str, api_key: str | None, timeout_s: Seconds, most_bytes: Bytes = MOST_BYTES
) -> OpenAI:
    """An openai client that keeps to the environment's proxies only for other machines.

    It repeats nothing of itself: ``Replies.send`` knows what is worth repeating. No reply is read
    beyond ``most_bytes``, or for longer than ``timeout_s``.
    """
    from openai import DefaultHttpxClient, OpenAI

    return OpenAI(
        base_url=base_url,
        api_key=api_key or "none",
        timeout=timeout_s,
        max_retries=0,
        default_headers=NO_COMPRESSION,
        http_client=DefaultHttpxClient(
            trust_env=not is_local(base_url),
            event_hooks={"response": [within(timeout_s, most_bytes)]},
        ),
    )


class Replies:
    """Whether a server still replies; several threads may note what they met."""

    def __init__(self, timeout_s: Seconds) -> None:
        self._timeout_s = timeout_s
        self._unanswered = 0
        self._lock = Lock()

    def note(self, *, replied: bool) -> None:
        """Count a request that got a reply of whatever kind, or none in time."""
        with self._lock:
            self._unanswered = 0 if replied else self._unanswered + 1

    def silence(self) -> str | None:
        """Why nothing more should be asked: nobody replies; None while somebody does."""
        if self._unanswered < SILENT_AFTER:
            return None
        return (
            f"the server is up but silent: {SILENT_AFTER} requests in a row got no reply within "
            f"{self._timeout_s:g} s"
        )

    def send(self, client: OpenAI, url: str, body: Mapping[str, Any]) -> Any:
        """One request, again after what may be over in a moment, but not after a time-out.

        The openai client, which would repeat that, too, must have been opened without retries.

        Raises:
            APIError: refused, or lost for good; of kind APITimeoutError without a reply in time.
            EngineError: larger than a reply may be, or no JSON.
        """
        from openai import APIError, APITimeoutError

        try:
            reply = _sent(client, url, body)
        except APITimeoutError:
            self.note(replied=False)
            raise
        except APIError as error:
            self.note(replied=True)
            if isinstance(error.__cause__, UnreadableReply):
                raise error.__cause__ from error
            raise
        except UnreadableReply:
            self.note(replied=True)
            raise
        self.note(replied=True)
        return _parsed(reply)


def _sent(client: OpenAI, url: str, body: Mapping[str, Any]) -> Any:
    from openai import APIConnectionError, APITimeoutError, InternalServerError, RateLimitError

    response: Any = http_library().Response
    for attempt in range(RETRIES):
        try:
            return client.post(url, cast_to=response, body=body)
        except APITimeoutError:
            raise
        except (APIConnectionError, InternalServerError, RateLimitError) as error:
            if isinstance(error.__cause__, UnreadableReply):
                raise
            time.sleep(FIRST_PAUSE_S * 2**attempt)
    return client.post(url, cast_to=response, body=body)


def _parsed(reply: Any) -> Any:
    try:
        return json.loads(reply.content)
    except (ValueError, RecursionError) as error:
        # Broken JSON, bytes that are no UTF-8, a number of thousands of digits, endless brackets.
        raise NoJsonError("the reply is no JSON") from error


class NoJsonError(EngineError):
    """A reply that is no JSON; the next one may be."""


class EngineClient:
    """Asks one vLLM server; safe to use from several threads."""

    def __init__(
        self, base_url: str, model: str, api_key: str | None = None, timeout_s: Seconds = 900.0
    ) -> None:
        self._client = open_client(base_url, api_key, timeout_s)
        self._replies = Replies(timeout_s)
        self._timeout_s = timeout_s
        self._key = api_key
        self._root = base_url.rstrip("/").removesuffix("/v1")
        self._model = model

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def silence(self) -> str | None:
        """Why nothing more should be asked: nobody replies; None while somebody does."""
        return self._replies.silence()

    def tokenize(self, text: str) -> tuple[int, ...]:
        """The token ids of a bare text, without special tokens.

        Raises:
            EngineError: the server has no ``/tokenize``, or refuses.
        """
        return self._tokens({"prompt": text, "add_special_tokens": False})

    def tokenize_chat(self, messages: Sequence[tuple[str, str]]) -> tuple[int, ...]:
        """The token ids of a conversation under the model's chat template, ready to be answered.

        A model without a chat template gets the bare text of the messages.
        """
        from openai import APIStatusError

        listed = [{"role": role, "content": content} for role, content in messages]
        try:
            return self._tokens({"messages": listed, "add_generation_prompt": True})
        except EngineError as error:
            if not isinstance(error.__cause__, APIStatusError) or "template" not in str(error):
                raise
            return self._tokens({"prompt": "\n\n".join(content for _, content in messages)})

    def _tokens(self, body: Mapping[str, Any]) -> tuple[int, ...]:
        reply = self._post("/tokenize", body)
        tokens = reply.get("tokens")
        if not isinstance(tokens, list) or any(count(token) is None for token in tokens):
            raise EngineError("/tokenize gave no tokens", where=self._root)
        return tuple(tokens)

    def detokenize(self, tokens: Sequence[int]) -> str:
        """The text of token ids."""
        return storable(str(self._post("/detokenize", {"tokens": list(tokens)}).get("prompt", "")))

    def max_model_len(self) -> Tokens | None:
        """The longest context that the server takes; None if it does not say."""
        return count(self._post("/tokenize", {"prompt": "a"}).get("max_model_len")) or None

    def answer(self, index: int, prompt: Sequence[int], max_tokens: Tokens) -> QualityAnswer:
        """Answer a prompt greedily, at most ``max_tokens`` long; a failure is in the record."""
        body = {
            "prompt": list(prompt),
            "max_tokens": max_tokens,
            "temperature": 0.0,
            "return_token_ids": True,
        }
        try:
            reply = self._post("/v1/completions", body)
            return _answer(index, reply, self._key)
        except (EngineError, *_OTHER_FORM) as error:
            return QualityAnswer(index, error=self._first_line(error))

    def score(self, index: int, prompt: Sequence[int], answer: Sequence[int]) -> QualityScore:
        """Score a prompt with its answer, token by token; a failure is in the record."""
        body = {
            "prompt": [*prompt, *answer],
            "max_tokens": 1,
            "temperature": 0.0,
            "prompt_logprobs": TOP_K,
        }
        try:
            reply = self._post("/v1/completions", body)
            return _score(index, reply["choices"][0]["prompt_logprobs"], prompt, answer)
        except (EngineError, *_OTHER_FORM) as error:
            return QualityScore(index, len(prompt), error=self._first_line(error))

    def score_behind(
        self, index: int, prompt: Sequence[int], answer: Sequence[int]
    ) -> QualityScore:
        """Score a prompt's tail and an answer while they are decoded behind the rest of it.

        The server must have been started with ``engines/eviction/forced.py``. A failure is in the
        record.
        """
        begin = tail_start(len(prompt))
        rest = [*prompt[begin:], *answer]
        body = {
            "prompt": list(prompt[:begin]),
            "max_tokens": len(rest),
            "temperature": 0.0,
            "ignore_eos": True,
            "logprobs": TOP_K,
            "return_tokens_as_token_ids": True,
            "vllm_xargs": {"forced": rest},
        }
        try:
            reply = self._post("/v1/completions", body)
            return _score_behind(index, reply["choices"][0]["logprobs"], prompt, answer)
        except (EngineError, *_OTHER_FORM) as error:
            return QualityScore(index, len(prompt), error=self._first_line(error))

    def _post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        from openai import APIError, APITimeoutError

        try:
            reply = self._replies.send(
                self._client, self._root + path, {"model": self._model, **body}
            )
        except APITimeoutError as error:
            what = f"{path}: no reply within {self._timeout_s:g} s"
            raise EngineError(what, where=self._root) from error
        except APIError as error:
            said = storable(without_key(f"{path}: {error.message}", self._key))
            raise EngineError(said[:500], where=self._root) from error
        except EngineError as error:
            raise EngineError(f"{path}: {error.what}", where=self._root) from error
        if not isinstance(reply, dict):
            raise EngineError(f"{path}: the reply is no JSON object", where=self._root)
        return reply

    def _first_line(self, error: Exception) -> str:
        """What went wrong, in one line; what a server wrote is in it, so the key is taken out."""
        text = error.what if isinstance(error, EngineError) else f"unexpected reply: {error!r}"
        lines = storable(without_key(text, self._key)).splitlines()
        return lines[0][:500] if lines else type(error).__name__


def without_key(text: str, api_key: str | None) -> str:
    """A foreign text without the key, should a server repeat it; before anything is cut off it."""
    return text.replace(api_key, "…") if api_key else text


def storable(text: str) -> str:
    """The text without halves of surrogate pairs, which JSON can write and no file can hold."""
    return text.encode("utf-8", "replace").decode("utf-8")


def count(value: Any) -> int | None:
    """A count as a record may hold it; what a server writes in its place is unknown."""
    is_count = isinstance(value, int) and not isinstance(value, bool)
    return value if is_count and 0 <= value < 1 << 60 else None


def _answer(index: int, reply: Mapping[str, Any], api_key: str | None = None) -> QualityAnswer:
    """The answer in a reply; raises one of ``_OTHER_FORM`` where there is none."""
    choice, usage = reply["choices"][0], reply.get("usage") or {}
    ids, finish = choice.get("token_ids"), choice.get("finish_reason")
    answer = QualityAnswer(
        index=index,
        text=storable(without_key(str(choice["text"]), api_key)),
        token_ids=tuple(ids) if isinstance(ids, list) else None,
        finish_reason=storable(without_key(finish, api_key)) if isinstance(finish, str) else None,
        prompt_tokens=count(usage.get("prompt_tokens")),
        output_tokens=count(usage.get("completion_tokens")),
    )
    if not is_sound_answer(answer):
        raise ValueError("its token ids are none")
    return answer


def _checked(score: QualityScore) -> QualityScore:
    """The score, if it could be read back."""
    if not is_sound_score(score):
        raise ValueError("its probabilities are none")
    return score


def kept_positions(prompt_length: Tokens, answer_length: Tokens) -> tuple[int, ...]:
    """Which places are kept: up to 256 of the context, evenly spread, and all of the answer.

    Place 0 has nothing before it and is never scored.
    """
    scored = prompt_length - 1
    kept = min(CONTEXT_POSITIONS, scored)
    context = [1 + (step * scored) // kept for step in range(kept)] if kept > 0 else []
    return (*context, *range(max(1, prompt_length), prompt_length + answer_length))


def _score(
    index: int, listed: Sequence[Any], prompt: Sequence[int], answer: Sequence[int]
) -> QualityScore:
    """Pick the kept places out of vLLM's ``prompt_logprobs``, one mapping per token."""
    tokens = (*prompt, *answer)
    if len(listed) != len(tokens):
        raise ValueError(f"{OTHER_TOKENS}: {len(listed)} scores for {len(tokens)}")
    positions = kept_positions(len(prompt), len(answer))
    entries = [_entry(listed[place]) for place in positions]
    if any(tokens[place] not in entry for place, entry in zip(positions, entries, strict=True)):
        raise ValueError(OTHER_TOKENS)
    own = [entry[tokens[place]] for place, entry in zip(positions, entries, strict=True)]
    score = QualityScore(
        index=index,
        prompt_length=len(prompt),
        positions=positions,
        logprobs=tuple(logprob for logprob, _ in own),
        ranks=tuple(rank for _, rank in own),
        top_ids=tuple(tuple(entry) for entry in entries),
        top_logprobs=tuple(tuple(lp for lp, _ in entry.values()) for entry in entries),
    )
    return _checked(score)


def _score_behind(
    index: int, listed: Mapping[str, Any], prompt: Sequence[int], answer: Sequence[int]
) -> QualityScore:
    """Pick the kept places out of the decoded tokens' ``logprobs``; the first is the prefill's."""
    begin = tail_start(len(prompt))
    rest = [*prompt[begin:], *answer]
    if [_token_id(token) for token in listed["tokens"]] != rest:
        raise ValueError(OTHER_TOKENS)
    positions = tuple(p for p in kept_positions(len(prompt), len(answer)) if p > begin)
    slots = [position - begin for position in positions]
    own = [max(float(listed["token_logprobs"][slot]), _LEAST_LOGPROB) for slot in slots]
    tops = [_top(listed["top_logprobs"][slot]) for slot in slots]
    score = QualityScore(
        index=index,
        prompt_length=len(prompt),
        positions=positions,
        logprobs=tuple(own),
        # Of a token that is not listed only this much is known: twenty are likelier.
        ranks=tuple(
            1 + sum(logprob > mine for logprob in top.values())
            for mine, top in zip(own, tops, strict=True)
        ),
        top_ids=tuple(tuple(top) for top in tops),
        top_logprobs=tuple(tuple(top.values()) for top in tops),
    )
    return _checked(score)


def _token_id(token: str) -> int:
    """``token_id:42`` → 42, as vLLM writes it under ``return_tokens_as_token_ids``."""
    return int(token.removeprefix("token_id:"))


def _top(listed: Mapping[str, Any]) -> dict[int, float]:
    """{token: logprob}, the likeliest first."""
    parsed = {_token_id(t): max(float(lp), _LEAST_LOGPROB) for t, lp in listed.items()}
    return dict(sorted(parsed.items(), key=lambda item: -item[1]))


def _entry(listed: Mapping[str, Any]) -> dict[int, tuple[float, int]]:
    """{token: (logprob, rank)}, the likeliest first."""
    parsed = {
        int(token): (max(float(one["logprob"]), _LEAST_LOGPROB), int(one["rank"]))
        for token, one in listed.items()
    }
    return dict(sorted(parsed.items(), key=lambda item: item[1][1]))
