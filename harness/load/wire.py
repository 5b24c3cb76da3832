"""Sends one completion request with the openai client and stamps its bytes on the clock.

Method: the openai client builds and checks the exchange (address, key, status, errors), but
neither copies the prompt (a body encoded beforehand goes through ``post(content=…)``; the client's
own path costs 8 µs per prompt token) nor parses the answer. Below it is aiohttp, with two stamps:

* sent: when the body is handed to the connection's socket, after a connection was there;
* arrived: when the event loop read the bytes from the socket, before any coroutine that waits
  for them is woken. Sixty-four answers that arrive together are stamped one after another, not
  one after the handling of another.

No proxies, no redirects, no retries, no compression: each would be measured as the server's.
Not covered: HTTP/2, Unix sockets.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import msgspec

from harness.clock import Clock
from harness.load.events import Answer, EndlessStream, cut, whole
from harness.load.target import Target, hide
from harness.record import PlannedRequest
from harness.units import Seconds

if TYPE_CHECKING:
    import aiohttp
    import httpx2
    from openai import AsyncOpenAI

# vLLM's server closes an idle connection after 5 s; one reused at that moment would fail.
_KEEPALIVE_S = 3.0
# How long a connection may take to end its answer after [DONE] and still be used again.
_DRAIN_S = 1.0
_CONNECT_TIMEOUT_S = 30.0
# Of the body of an error status, which nobody reads to the end of a megabyte.
_MAX_ERROR_BYTES = 1 << 20
_RESPONSE = "kvbench.response"


class RequestFailed(Exception):
    """The request ended without a whole answer; the message says how."""


@dataclass(slots=True)
class Sending:
    """What the transport notes of a request: when its body went out, and on which connection."""

    sent_s: Seconds | None = None
    arrival: ArrivalStamp | None = None


_sending: ContextVar[Sending] = ContextVar("kvbench_sending")


def encode_request(request: PlannedRequest, target: Target) -> bytes:
    """The JSON body of a planned request: greedy, of pinned length, streamed with usage.

    There is no per-request ``seed``: it kills the engine of vLLM's CPU build.
    """
    return msgspec.json.encode(
        {
            "model": target.model,
            "prompt": request.prompt_token_ids,
            "max_tokens": request.output_tokens,
            "min_tokens": request.output_tokens,
            "ignore_eos": True,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
    )


class ArrivalStamp(asyncio.Protocol):
    """Stands before a connection's protocol and notes when bytes were last read for it."""

    __slots__ = ("_inner", "_now", "last_s")

    def __init__(self, inner: asyncio.Protocol, clock: Clock) -> None:
        self._inner = inner
        self._now = clock.now
        self.last_s: Seconds = clock.now()

    def data_received(self, data: bytes) -> None:
        """Stamp, then hand on."""
        self.last_s = self._now()
        self._inner.data_received(data)

    def eof_received(self) -> bool | None:
        """Hand on."""
        return self._inner.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        """Hand on."""
        self._inner.connection_lost(exc)

    def pause_writing(self) -> None:
        """Hand on."""
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        """Hand on."""
        self._inner.resume_writing()


def _stamp_arrivals(transport: asyncio.Transport, clock: Clock) -> ArrivalStamp:
    protocol = transport.get_protocol()
    if not isinstance(protocol, ArrivalStamp):
        protocol = ArrivalStamp(cast("asyncio.Protocol", protocol), clock)
        transport.set_protocol(protocol)
    return protocol


def _open_session(clock: Clock) -> aiohttp.ClientSession:
    """An aiohttp session without limits of its own that notes sending and arrival."""
    import aiohttp

    class StampingConnector(aiohttp.TCPConnector):
        async def connect(self, *args: Any, **kwargs: Any) -> Any:
            connection = await super().connect(*args, **kwargs)
            if connection.transport is not None:
                _sending.get().arrival = _stamp_arrivals(connection.transport, clock)
            return connection

    async def on_body(_session: Any, _context: Any, _chunk: Any) -> None:
        _sending.get().sent_s = clock.now()

    trace = aiohttp.TraceConfig()
    trace.on_request_chunk_sent.append(on_body)
    return aiohttp.ClientSession(
        connector=StampingConnector(limit=0, keepalive_timeout=_KEEPALIVE_S),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_TIMEOUT_S),
        trace_configs=[trace],
        auto_decompress=False,
        trust_env=False,
    )


class StampingTransport:
    """An httpx2 transport over an aiohttp session; hands on the aiohttp response as it is."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        import httpx2

        self._session = session
        self._response_type = httpx2.Response

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send the request; return once the head of the answer is there."""
        response = await self._session.request(
            request.method,
            str(request.url),
            headers=dict(request.headers),
            data=request.content,
            allow_redirects=False,
        )
        return self._response_type(
            status_code=response.status,
            headers=list(response.raw_headers),
            content=_body(response),
            request=request,
            extensions={_RESPONSE: response},
        )

    async def aclose(self) -> None:
        """Close all connections."""
        await self._session.close()


async def _body(response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    # Read by the openai client alone, for the message of an error status.
    left = _MAX_ERROR_BYTES
    try:
        async for data in response.content.iter_any():
            yield data[:left]
            left -= len(data)
            if left <= 0:
                break
    finally:
        response.release()


@asynccontextmanager
async def open_wire(target: Target, clock: Clock) -> AsyncIterator[Wire]:
    """Open the way to a server; its connections are closed when the context ends."""
    from openai import AsyncOpenAI, DefaultAioHttpClient

    transport = StampingTransport(_open_session(clock))
    client = AsyncOpenAI(
        base_url=target.base_url,
        # Never left to OPENAI_API_KEY: a key in the environment is meant for another server.
        api_key=target.api_key or "none",
        max_retries=0,
        timeout=None,
        http_client=DefaultAioHttpClient(
            transport=cast("Any", transport), timeout=None, trust_env=False
        ),
        default_headers={"accept-encoding": "identity", "content-type": "application/json"},
    )
    async with client:
        yield Wire(client, target, clock)


class Wire:
    """The way to one server: an openai client on the stamping transport."""

    def __init__(self, client: AsyncOpenAI, target: Target, clock: Clock) -> None:
        self._client = client
        self._target = target
        self._clock = clock

    async def complete(self, body: bytes, sending: Sending, answer: Answer) -> None:
        """Send one request and read its answer to the end.

        Raises:
            RequestFailed: no connection, an error status, or a broken stream.
        """
        response = await self._send(body, sending)
        try:
            await self._read(response, sending.arrival, answer)
        finally:
            # Keeps the connection if the answer was read to its end, else closes it.
            response.release()

    async def _send(self, body: bytes, sending: Sending) -> aiohttp.ClientResponse:
        import aiohttp
        import httpx2
        from openai import APIStatusError, AsyncStream, OpenAIError

        _sending.set(sending)
        try:
            # With `stream` and this `cast_to` the client returns its response unread.
            response = await self._client.post(
                "/completions",
                content=body,
                cast_to=httpx2.Response,
                stream=True,
                stream_cls=AsyncStream[Any],
            )
        except APIStatusError as fault:
            raise RequestFailed(
                self._clean(f"HTTP {fault.status_code}: {fault.message}")
            ) from fault
        except (OpenAIError, aiohttp.ClientError, OSError) as fault:
            raise RequestFailed(self._clean(_describe(fault))) from fault
        return cast("aiohttp.ClientResponse", cast("Any", response).extensions[_RESPONSE])

    async def _read(
        self, response: aiohttp.ClientResponse, arrival: ArrivalStamp | None, answer: Answer
    ) -> None:
        import aiohttp

        content = response.content
        t_s = self._clock.now()
        try:
            while not answer.done and (data := await content.readany()):
                t_s = arrival.last_s if arrival else self._clock.now()
                answer.feed(data, t_s)
            with suppress(TimeoutError):
                async with asyncio.timeout(_DRAIN_S):
                    while await content.readany():
                        pass
        except EndlessStream as fault:
            raise RequestFailed(f"the stream was left: {fault}") from fault
        except (aiohttp.ClientError, OSError) as fault:
            raise RequestFailed(self._clean(_describe(fault))) from fault
        answer.end(t_s)

    def _clean(self, message: str) -> str:
        return cut(hide(whole(message), self._target.api_key))


def _describe(fault: BaseException) -> str:
    return f"{type(fault).__name__}: {fault}" if str(fault) else type(fault).__name__
