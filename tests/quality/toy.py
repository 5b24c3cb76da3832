"""A toy language model behind vLLM's endpoints: small enough to know what it must answer.

Words are tokens. Which tokens may follow, and how likely, is a hash of the token before; the token
that a given text goes on with is made likelier, as if the model knew English. It finds records in
its context when asked for them. It can be told to be slightly off (``noise``), to have other
weights (``weights``), to lose the order of its prompt (``scramble``: what comes next depends on any
word before), to be handed the prompt in another order (``shuffle``), to write broken text
(``text``: ``empty``, ``loop``, ``garbled``), to refuse system messages (``no_system``), or to take
questions and never reply (``silent``, for servers that heed it).
"""

from __future__ import annotations

import json
import math
import re
import threading
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

EOS, USER, END, ASSISTANT = 2, 3, 4, 5
SPECIAL = {EOS: "", USER: "<user>", END: "<end>", ASSISTANT: "<assistant>"}
CANDIDATES = 24
_TOKEN = re.compile(r"\s*\w+|\s*[^\w\s]|\s+")
_CODE = re.compile(r"What is the access code of the ([a-z ]+)\?")
_PLACE = re.compile(r"Where is the ([a-z ]+) kept")


@dataclass(frozen=True)
class Toy:
    """One model; ``max_model_len`` is all it tells of itself."""

    noise: float = 0.0
    weights: int = 0
    scramble: int = 0
    text: str = "plain"
    max_model_len: int = 2048
    fail_path: str = ""
    judge: str = ""
    shuffle: int = 0
    no_system: int = 0
    silent: int = 0

    def handle(self, path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        """Answer one request: status and JSON."""
        if self.fail_path and self.fail_path in path:
            return 500, {"error": {"message": "the toy was told to fail", "code": 500}}
        if path.endswith("/detokenize"):
            return 200, {"prompt": text_of(body["tokens"])}
        if path.endswith("/tokenize"):
            return self.tokenized(body)
        if path.endswith("/chat/completions"):
            said = json.dumps({"verdict": self.judge, "reason": "because"})
            message = {"role": "assistant", "content": said}
            return 200, {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}
        prompt: list[int] = body["prompt"]
        if body.get("seed") is not None:
            return 500, {"error": {"message": "CPU Generator does not use offset", "code": 500}}
        if len(prompt) + body["max_tokens"] > self.max_model_len:
            return 400, {"error": {"message": "longer than max_model_len", "code": 400}}
        prompt = self.arrived(prompt)
        out = self.generate(prompt, body["max_tokens"])
        choice: dict[str, Any] = {"index": 0, "text": text_of(out), "finish_reason": "stop"}
        if body.get("return_token_ids"):
            choice["token_ids"] = out
        if body.get("prompt_logprobs"):
            choice["prompt_logprobs"] = self.prompt_logprobs(prompt, body["prompt_logprobs"])
        usage = {"prompt_tokens": len(prompt), "completion_tokens": len(out)}
        return 200, {"object": "text_completion", "choices": [choice], "usage": usage}

    def arrived(self, prompt: list[int]) -> list[int]:
        """The prompt as it reaches the model."""
        if not self.shuffle:
            return prompt
        return sorted(prompt, key=lambda token: _hash(token, self.shuffle))

    def tokenized(self, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        """The answer of ``/tokenize``."""
        roles = {message["role"] for message in body.get("messages", ())}
        if self.no_system and "system" in roles:
            return 400, {"error": {"message": "System role not supported", "code": 400}}
        tokens = self.tokens(body)
        length = self.max_model_len
        return 200, {"tokens": tokens, "count": len(tokens), "max_model_len": length}

    def tokens(self, body: dict[str, Any]) -> list[int]:
        """Token ids of a text or of a conversation."""
        if "prompt" in body:
            return ids_of(body["prompt"])
        listed: list[int] = []
        for message in body["messages"]:
            listed += [USER, *ids_of(message["content"]), END]
        return [*listed, ASSISTANT]

    def next_token(self, context: Sequence[int], target: int | None) -> dict[int, float]:
        """Log-probabilities of what may come next; ``target`` is what the text goes on with."""
        before = context[-1] if context else 0
        if self.scramble and len(context) > 3:
            before = context[_hash(len(context), before) % len(context)]
        logits: dict[int, float] = {}
        for place in range(CANDIDATES):
            token = _word_id(_hash(before, place, self.weights))
            logits[token] = 4.0 * _unit(before, place, self.weights)
        if target is not None:
            knows = not self.weights and not self.scramble
            logits[target] = max(logits.get(target, 0.0), 6.0 if knows else -6.0)
        for token in logits:
            logits[token] += self.noise * (2 * _unit(token, before, len(context)) - 1)
        top = max(logits.values())
        total = math.log(sum(math.exp(value - top) for value in logits.values())) + top
        return {token: value - total for token, value in logits.items()}

    def prompt_logprobs(self, prompt: Sequence[int], k: int) -> list[Any]:
        """As vLLM gives them: null first, then the k likeliest and the token itself."""
        listed: list[Any] = [None]
        for place in range(1, len(prompt)):
            found = self.next_token(prompt[:place], prompt[place])
            ranked = sorted(found, key=lambda token: -found[token])
            kept = dict.fromkeys([*ranked[:k], prompt[place]])
            listed.append(
                {
                    str(t): {"logprob": found[t], "rank": ranked.index(t) + 1, "decoded_token": "x"}
                    for t in kept
                }
            )
        return listed

    def generate(self, prompt: Sequence[int], limit: int) -> list[int]:
        """Greedy text: what it was asked to find, else a chain of likeliest tokens."""
        if self.text == "empty":
            return [EOS]
        if self.text == "loop":
            return ids_of(" and so on" * limit)[:limit]
        if self.text == "garbled":
            return ids_of(" \ufffd\x01" * limit)[:limit]
        found = None if self.weights or self.scramble else _find(text_of(prompt))
        if found is not None:
            return [*ids_of(found), EOS][:limit]
        out: list[int] = []
        for _ in range(min(limit, 20 + _hash(len(prompt), prompt[-9:][0]) % 12)):
            choices = self.next_token([*prompt, *out], None)
            fresh = {t: lp for t, lp in choices.items() if t not in out[-12:]}
            out.append(max(fresh, key=lambda token: fresh[token]))
        return [*out, EOS][:limit]


def _find(text: str) -> str | None:
    code, place = _CODE.search(text), _PLACE.search(text)
    if code and (fact := re.search(rf"code of the {code[1]} is (\d+)", text)):
        return f" {fact[1]}"
    if place and (fact := re.search(rf"The {place[1]} is kept inside the old (\w+)", text)):
        return f" The {place[1]} is kept inside the old {fact[1]}."
    return None


_WORDS = tuple(
    f" {a}{b}" for a in ("lor", "mel", "tan", "sur", "vek") for b in ("a", "em", "is", "o")
)


def _word_id(number: int) -> int:
    return _id(f"{_WORDS[number % len(_WORDS)]}{number % 9}".encode())


def _id(chunk: bytes) -> int:
    """A token is its own bytes, behind a one: any process can read it."""
    return int.from_bytes(b"\x01" + chunk)


def ids_of(text: str) -> list[int]:
    """Token ids of a text: words, in parts of at most six bytes."""
    pieces = [piece.encode() for piece in _TOKEN.findall(text)]
    return [_id(piece[at : at + 6]) for piece in pieces for at in range(0, len(piece), 6)]


def text_of(tokens: Sequence[int]) -> str:
    """The text of token ids."""
    data = b"".join(
        SPECIAL[t].encode() if t in SPECIAL else t.to_bytes(9).lstrip(b"\0")[1:] for t in tokens
    )
    return data.decode("utf-8", errors="replace")


def _hash(*numbers: int) -> int:
    return zlib.crc32(",".join(map(str, numbers)).encode())


def _unit(*numbers: int) -> float:
    return _hash(7, *numbers) / 2**32


def wants(path: str, body: bytes) -> bool:
    """Whether a request is one of those that are never timed."""
    if path.endswith(("/tokenize", "/detokenize", "/chat/completions")):
        return True
    return path.endswith("/completions") and b'"stream"' not in body


def parse(text: str, max_model_len: int = 2048) -> Toy:
    """``noise=0.2,weights=1`` as a toy."""
    kinds = {field.name: type(field.default) for field in fields(Toy)}
    parts = (part.partition("=") for part in text.split(",") if part)
    return replace(
        Toy(max_model_len=max_model_len), **{key: kinds[key](value) for key, _, value in parts}
    )


Handler = Callable[[str, dict[str, Any]], tuple[int, dict[str, Any]]]


@dataclass
class Local:
    """A running local server and what it was asked."""

    url: str
    asked: list[tuple[str, dict[str, Any], dict[str, str]]]


@contextmanager
def serving(handler: Handler) -> Iterator[Local]:
    """Serve a handler on 127.0.0.1 in a thread."""
    local = Local("", [])

    class Requests(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            local.asked.append((self.path, body, dict(self.headers)))
            status, reply = handler(self.path, body)
            data = json.dumps(reply).encode()
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            # Whoever asked may have waited long enough.
            with suppress(BrokenPipeError):
                self.wfile.write(data)

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Requests)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        local.url = f"http://127.0.0.1:{server.server_address[1]}/v1"
        yield local
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
