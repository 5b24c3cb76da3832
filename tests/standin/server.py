"""The stand-in's HTTP server: completions on a schedule, health, models, metrics.

A bare asyncio protocol, so that it is several times faster than the clients that are measured
against it. The schedule of an answer counts from the moment at which the request's last byte
was read. ``GET /requests`` gives the bodies and headers received so far, ``GET /connections``
how many connections were opened, ``GET /lateness`` by how many seconds each event was written
after it was due. The file that ``FAKE_ASKED`` names gets a line for each request that answer
quality makes: ``score``, ``judge``, or the route.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import socket
import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.quality import toy
from tests.standin.behaviour import (
    LAST_CHUNK,
    Behaviour,
    error_event,
    events,
    garbage_event,
    http_chunk,
    parse_options,
    whole_stream,
)

_STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\nserver: standin\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)


@dataclass
class State:
    """What the server knows: its settings and what it has seen."""

    model: str
    default: Behaviour
    kv_cache_tokens: int
    block_size: int
    api_key: str | None = None
    max_model_len: int = 8192
    kv_cache_memory_bytes: int | None = None
    requests: deque[dict[str, Any]] = field(default_factory=lambda: deque(maxlen=10_000))
    lateness: deque[float] = field(default_factory=lambda: deque(maxlen=200_000))
    running: dict[int, int] = field(default_factory=dict)
    prompt_tokens: int = 0
    generation_tokens: int = 0
    connections: int = 0


class Connection(asyncio.Protocol):
    """One client connection; requests on it are answered one after the other."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.buffer = b""
        self.arrived = 0.0
        self.task: asyncio.Task[None] | None = None
        self.timer: asyncio.TimerHandle | None = None
        self.writable = asyncio.Event()
        self.writable.set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.state.connections += 1
        sock = transport.get_extra_info("socket")
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def connection_lost(self, exc: Exception | None) -> None:
        for pending in (self.task, self.timer):
            if pending is not None:
                pending.cancel()
        self.state.running.pop(id(self), None)

    def pause_writing(self) -> None:
        self.writable.clear()

    def resume_writing(self) -> None:
        self.writable.set()

    def data_received(self, data: bytes) -> None:
        self.arrived = time.monotonic()
        self.buffer += data
        head, separator, rest = self.buffer.partition(b"\r\n\r\n")
        if not separator:
            return
        lines = head.decode("latin-1").split("\r\n")
        pairs = (line.partition(":") for line in lines[1:])
        headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
        length = int(headers.get("content-length", "0"))
        if len(rest) < length:
            return
        self.buffer = rest[length:]
        method, path, _ = lines[0].split(" ")
        asyncio.get_running_loop().call_soon(self.answer, method, path, headers, rest[:length])

    def answer(self, method: str, path: str, headers: dict[str, str], body: bytes) -> None:
        options, _, route = path.partition("/v1/")
        if method == "POST" and toy.wants(path, body):
            # What answer quality asks; everything that is timed goes the stand-in's own way.
            self.answer_question(path, body)
        elif method == "POST" and route == "completions":
            self.complete(options.strip("/"), headers, json.loads(body))
        elif path.endswith("/v1/models"):
            card = {"id": self.state.model, "object": "model", "max_model_len": 8192}
            self.reply_json(200, {"object": "list", "data": [card]})
        elif path == "/health":
            self.reply(200, b"", "text/plain")
        elif path == "/version":
            self.reply_json(200, {"version": "0.32.0"})
        elif path == "/metrics":
            self.reply(200, metrics(self.state).encode(), "text/plain; version=0.0.4")
        elif path == "/requests":
            self.reply_json(200, list(self.state.requests))
        elif path == "/connections":
            self.reply_json(200, self.state.connections)
        elif path == "/lateness":
            self.reply_json(200, list(self.state.lateness))
        else:
            self.reply_json(404, {"error": {"message": f"no route {path}", "code": 404}})

    def answer_question(self, path: str, body: bytes) -> None:
        model = toy.parse(os.environ.get("FAKE_TOY", ""), self.state.max_model_len)
        question = json.loads(body)
        note_asked(path, question)
        if not (model.silent and path.endswith("/v1/completions")):
            self.reply_json(*model.handle(path, question))

    def reply(self, status: int, body: bytes, content_type: str) -> None:
        head = f"HTTP/1.1 {status} Status\r\ncontent-type: {content_type}\r\n"
        self.transport.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)

    def reply_json(self, status: int, value: Any) -> None:
        self.reply(status, json.dumps(value).encode(), "application/json")

    def reply_error(self, status: int, message: str) -> None:
        self.reply_json(status, {"error": {"message": message, "type": "Error", "code": status}})

    def complete(self, options: str, headers: dict[str, str], body: dict[str, Any]) -> None:
        state = self.state
        state.requests.append({"headers": headers, "body": body})
        behaviour = parse_options(options, state.default)
        if state.api_key and headers.get("authorization") != f"Bearer {state.api_key}":
            self.reply_error(401, f"wrong key: {headers.get('authorization')}")
            return
        if behaviour.fail == "http":
            self.reply_error(behaviour.status, "the stand-in was told to refuse")
            return
        prompt_tokens = len(body["prompt"])
        content = (behaviour, state.model, prompt_tokens, body["max_tokens"])
        state.prompt_tokens += prompt_tokens
        state.generation_tokens += body["max_tokens"]
        if behaviour.at_once:
            self.transport.write(_STREAM_HEAD + whole_stream(*content))
            return
        answer = events(*content)
        state.running[id(self)] = prompt_tokens + body["max_tokens"]
        if behaviour.plain:
            self.transport.write(_STREAM_HEAD)
            self.emit(behaviour, answer, self.arrived, 0)
            return
        self.task = asyncio.create_task(self.stream(behaviour, answer, self.arrived))
        self.task.add_done_callback(lambda _: state.running.pop(id(self), None))

    def emit(
        self, behaviour: Behaviour, answer: tuple[bytes, ...], start: float, number: int
    ) -> None:
        """Write what is due from event ``number`` on, then come back: no task, so little delay."""
        last = len(answer) - 2
        while (now := time.monotonic()) >= (due := _due(behaviour, start, number)):
            self.state.lateness.append(now - due)
            if number >= last:
                self.transport.write(b"".join(map(http_chunk, answer[number:])) + LAST_CHUNK)
                self.state.running.pop(id(self), None)
                return
            self.transport.write(http_chunk(answer[number]))
            number += 1
        again = (behaviour, answer, start, number)
        self.timer = asyncio.get_running_loop().call_at(due, self.emit, *again)

    async def stream(self, behaviour: Behaviour, answer: tuple[bytes, ...], start: float) -> None:
        self.transport.write(_STREAM_HEAD)
        *content, end = answer
        step = max(1, behaviour.events_per_write)
        limit = behaviour.fail_after if behaviour.fail else len(content)
        for i in range(0, limit, step):
            due = _due(behaviour, start, i)
            await self.wait_until(due)
            group = content[i : min(i + step, limit)]
            await self.write(behaviour, b"".join(map(http_chunk, group)))
            self.state.lateness.append(time.monotonic() - due)
        if behaviour.fail:
            await self.fail(behaviour)
        else:
            await self.write(behaviour, (http_chunk(end) if end else b"") + LAST_CHUNK)

    async def wait_until(self, due: float) -> None:
        delay = due - time.monotonic()
        if delay > 0:
            await asyncio.sleep(delay)

    async def write(self, behaviour: Behaviour, data: bytes) -> None:
        size = behaviour.split_bytes
        for part in [data[i : i + size] for i in range(0, len(data), size)] if size else [data]:
            await self.writable.wait()
            self.transport.write(part)
            if size:
                # Long enough for the reader to be woken for this part alone.
                await asyncio.sleep(0.0005)

    async def fail(self, behaviour: Behaviour) -> None:
        if behaviour.fail == "error":
            self.transport.write(http_chunk(error_event(behaviour)) + LAST_CHUNK)
        elif behaviour.fail == "garbage":
            self.transport.write(http_chunk(garbage_event(behaviour)) + LAST_CHUNK)
        elif behaviour.fail == "close":
            self.transport.write(LAST_CHUNK)
        elif behaviour.fail == "die":
            self.transport.abort()
        elif behaviour.fail == "exit":
            # As a killed server goes: what the socket has taken is delivered, nothing more.
            os._exit(3)
        else:
            await asyncio.sleep(3600)


def note_asked(path: str, body: dict[str, Any]) -> None:
    """Tell whoever counts what was asked; several servers share the file, which outlives them."""
    if (file := os.environ.get("FAKE_ASKED")) is None:
        return
    kind = "score" if body.get("prompt_logprobs") else path
    if path.endswith("/chat/completions"):
        kind = "judge"
    with Path(file).open("a", encoding="utf-8") as lines:
        lines.write(kind + "\n")


def _due(behaviour: Behaviour, start: float, number: int) -> float:
    return start + behaviour.ttft_s + behaviour.itl_s * number


def metrics(state: State) -> str:
    """The Prometheus text of a vLLM server in this state."""
    blocks = state.kv_cache_tokens // state.block_size
    held = sum(-(-tokens // state.block_size) for tokens in state.running.values())
    usage = min(1.0, held / max(1, blocks - 1))
    labels = f'{{engine="0",model_name="{state.model}"}}'
    info = (
        f'block_size="{state.block_size}",cache_dtype="auto",enable_prefix_caching="False",'
        f'engine="0",kv_cache_max_concurrency="{state.kv_cache_tokens / state.max_model_len}",'
        f'kv_cache_memory_bytes="{state.kv_cache_memory_bytes}",kv_cache_size_tokens="{state.kv_cache_tokens}",'
        f'num_gpu_blocks="{blocks}"'
    )
    samples = {
        "num_requests_running": ("gauge", len(state.running)),
        "num_requests_waiting": ("gauge", 0),
        "kv_cache_usage_perc": ("gauge", usage),
        "num_preemptions_total": ("counter", 0),
        "prefix_cache_queries_total": ("counter", 0),
        "prefix_cache_hits_total": ("counter", 0),
        "prompt_tokens_total": ("counter", state.prompt_tokens),
        "generation_tokens_total": ("counter", state.generation_tokens),
    }
    lines = [
        "# HELP vllm:cache_config_info Information of the LLMEngine CacheConfig",
        "# TYPE vllm:cache_config_info gauge",
        f"vllm:cache_config_info{{{info}}} 1.0",
    ]
    for name, (kind, value) in samples.items():
        family = f"vllm:{name}"
        lines.append(f"# HELP {family} {name.replace('_', ' ')}")
        lines.append(f"# TYPE {family} {kind}")
        lines.append(f"{family}{labels} {float(value)}")
    return "\n".join(lines) + "\n"


async def serve(state: State, host: str, port: int) -> None:
    """Serve until cancelled; the first line on stdout is the port that was bound."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Connection(state), host, port, backlog=4096)
    print(server.sockets[0].getsockname()[1], flush=True)  # noqa: T201 - the hand-over
    await server.serve_forever()


def main() -> None:
    """Read the command line and serve."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--model", default="standin")
    parser.add_argument("--options", default="", help="key=value,… of Behaviour, for all requests")
    parser.add_argument("--kv-cache-tokens", type=int, default=46_592)
    parser.add_argument("--block-size", type=int, default=128)
    parser.add_argument("--max-model-len", type=int, default=8192)
    parser.add_argument("--kv-cache-memory-bytes", type=int)
    parser.add_argument("--api-key")
    # A launcher of vLLM passes vLLM's flags; what the stand-in doesn't know it ignores.
    args, _ = parser.parse_known_args()
    state = State(
        model=args.model,
        default=parse_options(args.options, Behaviour()),
        kv_cache_tokens=args.kv_cache_tokens,
        block_size=args.block_size,
        api_key=args.api_key,
        max_model_len=args.max_model_len,
        kv_cache_memory_bytes=args.kv_cache_memory_bytes,
    )
    asyncio.run(serve(state, args.host, args.port))


if __name__ == "__main__":
    main()
