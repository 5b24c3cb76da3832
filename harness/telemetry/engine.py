"""The engine's own gauges and counters, from vLLM's Prometheus endpoint ``/metrics``.

Method: one kept-alive HTTP connection; of the several hundred lines that vLLM prints (histograms
mostly) only those whose name is in ``METRIC_NAMES`` reach prometheus_client's parser, which keeps
a reading cheap. A name that the engine does not print is unknown (None), never 0, and so is a
value that can't be true: a pool used more than wholly, fewer than no requests.

Several engines behind one server (data parallel) print one line each, told apart by the label
``engine``: counters and queue lengths are added up, the cache usage is the mean over engines (all
have pools of the same size), and a granted figure is given only if all engines agree on it.

Not covered: histograms, LoRA and multi-modal metrics, an endpoint behind a proxy or a password,
and engines that are not vLLM.
"""

from __future__ import annotations

import http.client
import math
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from urllib.parse import SplitResult, urlsplit

from harness.plausible import MAX_COUNT
from harness.record import EngineSample, GrantedKv
from harness.telemetry import timed
from harness.telemetry.source import Problems
from harness.units import Seconds

METRIC_NAMES: Mapping[str, tuple[str, ...]] = {
    "kv_cache_usage": (
        "vllm:kv_cache_usage_perc",  # a fraction of 1 despite its name
        "vllm:gpu_cache_usage_perc",  # deprecated in mid-2025, gone since late 2025
    ),
    "requests_running": ("vllm:num_requests_running",),
    "requests_waiting": ("vllm:num_requests_waiting",),
    "preemptions_total": ("vllm:num_preemptions_total", "vllm:num_preemptions"),
    "prefix_cache_queries_total": (
        "vllm:prefix_cache_queries_total",
        "vllm:prefix_cache_queries",
        "vllm:gpu_prefix_cache_queries_total",
        "vllm:gpu_prefix_cache_queries",
    ),
    "prefix_cache_hits_total": (
        "vllm:prefix_cache_hits_total",
        "vllm:prefix_cache_hits",
        "vllm:gpu_prefix_cache_hits_total",
        "vllm:gpu_prefix_cache_hits",
    ),
    "prompt_tokens_total": ("vllm:prompt_tokens_total", "vllm:prompt_tokens"),
    "generation_tokens_total": ("vllm:generation_tokens_total", "vllm:generation_tokens"),
    "external_cache_hits_total": (
        "vllm:external_prefix_cache_hits_total",
        "vllm:external_prefix_cache_hits",
    ),
}
"""Fields of :class:`EngineSample` → the engine's spellings of it, newest first.

Source: vllm/v1/metrics/loggers.py of 0.32; the older ones from vLLM's pull requests 18354 and
29330, which renamed and removed them. A counter carries ``_total`` on the wire where the engine's
prometheus_client adds it.
"""

CACHE_CONFIG_INFO = "vllm:cache_config_info"
TIMEOUT_S: Seconds = 2.0
#: vLLM's page has some 100 kB; with hundreds of LoRA adapters a few MB.
MAX_PAGE_BYTES = 16 << 20
_PART_BYTES = 1 << 16
_MAX_WORD_CHARS = 100

_AVERAGED = frozenset({"kv_cache_usage"})
_WANTED = re.compile(
    r"^(?:"
    + "|".join(re.escape(name) for name in {*chain(*METRIC_NAMES.values()), CACHE_CONFIG_INFO})
    + r")[ {].*$",
    re.MULTILINE,
)


@dataclass(frozen=True, slots=True)
class _Line:
    """One value on the page: name, labels, value."""

    name: str
    labels: dict[str, str]
    value: float


def _lines(text: str) -> list[_Line]:
    """The lines that concern us. Raises ValueError if one is not in Prometheus' text format."""
    from prometheus_client.parser import text_string_to_metric_families

    wanted = "\n".join(_WANTED.findall(text)) + "\n"
    return [
        _Line(sample.name, dict(sample.labels), sample.value)
        for family in text_string_to_metric_families(wanted)
        for sample in family.samples
    ]


def _value(field: str, lines: Sequence[_Line]) -> float | None:
    """The field's value by its newest spelling that is on the page, over all engines."""
    for name in METRIC_NAMES[field]:
        values = [line.value for line in lines if line.name == name]
        if values:
            most = 1.0 if field in _AVERAGED else float(MAX_COUNT)
            if not all(0.0 <= value <= most for value in values):
                return None
            total = math.fsum(values)
            return total / len(values) if field in _AVERAGED else total
    return None


def parse_metrics(text: str, t_s: Seconds = 0.0) -> EngineSample:
    """Read the text of ``/metrics`` into a sample stamped ``t_s``; what is missing is None.

    Raises:
        ValueError: a line that we want is not in Prometheus' text format.
    """
    lines = _lines(text)
    values = {field: _value(field, lines) for field in METRIC_NAMES}
    asked, hits = values["prefix_cache_queries_total"], values["prefix_cache_hits_total"]
    if asked is not None and hits is not None and hits > asked:
        # One of the two is wrong, and nobody can tell which.
        values["prefix_cache_queries_total"] = values["prefix_cache_hits_total"] = None
    return EngineSample(t_s=t_s, **values)


def _agreed(labels: Iterable[Mapping[str, str]], key: str) -> str | None:
    """The label's text if every engine prints the same one and it is not ``None``."""
    texts = {each.get(key) for each in labels}
    text = texts.pop() if len(texts) == 1 else None
    return None if text in (None, "", "None") else text


def _granted_count(text: str | None) -> int | None:
    try:
        value = int(text) if text is not None else 0
    except ValueError:
        return None
    return value if 1 <= value < MAX_COUNT else None


def _granted_ratio(text: str | None) -> float | None:
    try:
        value = float(text) if text is not None else math.nan
    except ValueError:
        return None
    return value if 0.0 < value < MAX_COUNT else None


def word(value: object) -> str | None:
    """A server's short text, such as a version; None if it is none that can be shown and stored."""
    fit = isinstance(value, str) and 0 < len(value) <= _MAX_WORD_CHARS and value.isprintable()
    return str(value) if fit else None


def parse_granted(text: str) -> GrantedKv:
    """Read what the engine allocated from the labels of ``vllm:cache_config_info``.

    The labels are Python's text of the engine's own cache settings: ``'8'``, ``'True'``,
    ``'None'``. ``kv_cache_memory_bytes`` is the size that was asked for, and None where the engine
    made the pool of what ``gpu_memory_utilization`` left. Older engines print neither tokens nor
    concurrency. A figure that no pool can have is None.

    Raises:
        ValueError: the line is not in Prometheus' text format.
    """
    labels = [line.labels for line in _lines(text) if line.name == CACHE_CONFIG_INFO]
    caching = _agreed(labels, "enable_prefix_caching")
    return GrantedKv(
        block_size=_granted_count(_agreed(labels, "block_size")),
        num_gpu_blocks=_granted_count(_agreed(labels, "num_gpu_blocks")),
        kv_cache_tokens=_granted_count(_agreed(labels, "kv_cache_size_tokens")),
        max_concurrency=_granted_ratio(_agreed(labels, "kv_cache_max_concurrency")),
        kv_cache_memory_bytes=_granted_count(_agreed(labels, "kv_cache_memory_bytes")),
        cache_dtype=word(_agreed(labels, "cache_dtype")),
        enable_prefix_caching={"True": True, "False": False}.get(caching or ""),
    )


class _Page:
    """The ``/metrics`` page behind one kept-alive connection."""

    def __init__(self, base_url: str, timeout_s: Seconds) -> None:
        url = urlsplit(base_url)
        self._path = f"{url.path.rstrip('/').removesuffix('/v1')}/metrics"
        self._connection = _connection(url, timeout_s)

    def text(self) -> str:
        """Fetch the page once, over a new connection if the kept one was closed meanwhile.

        Raises:
            OSError, http.client.HTTPException: the page can't be had.
        """
        reused = self._connection.sock is not None
        try:
            return self._fetch()
        except (http.client.HTTPException, ConnectionError):
            self._connection.close()
            if not reused:
                raise
        return self._fetch()

    def _fetch(self) -> str:
        try:
            self._connection.request("GET", self._path)
            response = self._connection.getresponse()
            body = self._body(response)
        except (OSError, http.client.HTTPException):
            self._connection.close()
            raise
        if response.status != http.client.OK:
            reason = word(response.reason) or ""
            raise OSError(f"GET {self._path} answered {response.status} {reason}".rstrip())
        return body.decode(errors="replace")

    def _body(self, response: http.client.HTTPResponse) -> bytes:
        """The whole body; a page without end must hold up neither the sampler nor the memory."""
        parts: list[bytes] = []
        size = 0
        while part := self._part(response, size):
            parts.append(part)
            size += len(part)
        # Nothing is left; only this tells the connection that it may be used again.
        response.read()
        return b"".join(parts)

    def _part(self, response: http.client.HTTPResponse, size: int) -> bytes:
        with suppress(TimeoutError):
            if size <= MAX_PAGE_BYTES:
                return response.read1(_PART_BYTES)
        self._connection.close()
        raise OSError(f"GET {self._path} answered without end ({size:,} bytes so far)")

    def close(self) -> None:
        self._connection.close()


def _connection(url: SplitResult, timeout_s: Seconds) -> http.client.HTTPConnection:
    if url.hostname is None:
        raise ValueError(f"{url.geturl()!r} is no http(s) address")
    secure = url.scheme == "https"
    return timed.connection(url.hostname, url.port, secure=secure, timeout=timeout_s)


_UNREADABLE = (OSError, http.client.HTTPException, ValueError)


def _page_text(base_url: str, timeout_s: Seconds) -> str:
    page = _Page(base_url, timeout_s)
    try:
        return page.text()
    finally:
        page.close()


def read_granted(base_url: str, timeout_s: Seconds = TIMEOUT_S) -> GrantedKv:
    """What the server at ``base_url`` (with or without ``/v1``) allocated; all None if unread."""
    try:
        return parse_granted(_page_text(base_url, timeout_s))
    except _UNREADABLE:
        return GrantedKv()


class EngineSource:
    """Scrapes ``/metrics`` of the server at ``base_url`` (with or without ``/v1``)."""

    def __init__(
        self,
        base_url: str,
        timeout_s: Seconds = TIMEOUT_S,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.problems = Problems()
        self._page = _Page(base_url, timeout_s)
        self._monotonic = monotonic

    def read(self, now: Seconds) -> list[EngineSample]:
        """One sample, all None if the page can't be had.

        It is stamped with the arrival of the answer: a busy server lets the request wait and
        renders the page only just before it answers.
        """
        asked = self._monotonic()
        try:
            text = self._page.text()
            answered_s = now + self._monotonic() - asked
            return [parse_metrics(text, answered_s)]
        except _UNREADABLE as error:
            self.problems.note(f"{type(error).__name__}: {error}")
            return [EngineSample(t_s=now)]

    def close(self) -> None:
        """Let the connection go."""
        self._page.close()
