"""The engine's metrics: a real page of vLLM 0.32.0, older spellings, and a real HTTP server.

``tests/data/vllm_0_32_metrics.txt`` was taken from a server with SmolLM2's shape and a pool of 40
blocks while 12 requests overflowed it. Left out of it are only lines of histograms, of which one
of each kind is kept.
"""

from __future__ import annotations

import math
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field, fields, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from harness.clock import Clock
from harness.record import EngineSample, GrantedKv, Sample
from harness.telemetry.engine import (
    METRIC_NAMES,
    EngineSource,
    parse_granted,
    parse_metrics,
    read_granted,
)
from harness.telemetry.sampler import Sampler
from harness.telemetry.source import Problems

REAL_PAGE = (Path(__file__).parent.parent / "data" / "vllm_0_32_metrics.txt").read_text()
UNKNOWN = EngineSample(t_s=0.0)


def test_a_real_page_gives_every_field() -> None:
    sample = parse_metrics(REAL_PAGE, t_s=7.0)
    # 11 of the 40 - 1 blocks that can be used; ten requests of 512 tokens had begun, of which nine
    # found their first block of 128 tokens cached: 10 x 512 = 5,120 and 9 x 128 = 1,152
    assert sample == EngineSample(
        t_s=7.0,
        kv_cache_usage=pytest.approx(11 / 39),
        requests_running=2.0,
        requests_waiting=4.0,
        preemptions_total=1.0,
        prefix_cache_queries_total=5120.0,
        prefix_cache_hits_total=1152.0,
        prompt_tokens_total=5120.0,
        generation_tokens_total=2050.0,
        external_cache_hits_total=0.0,
    )


def test_a_real_page_gives_what_was_granted() -> None:
    # 40 blocks x 128 tokens = 5,120 tokens; 40 x 128 x 23,040 B = 117,964,800 B;
    # 5,120 / 2,048 (max_model_len) = 2.5 requests
    assert parse_granted(REAL_PAGE) == GrantedKv(
        block_size=128,
        num_gpu_blocks=40,
        kv_cache_tokens=5120,
        max_concurrency=2.5,
        kv_cache_memory_bytes=117_964_800,
        cache_dtype="auto",
        enable_prefix_caching=True,
    )


def test_every_field_of_a_sample_has_its_spellings() -> None:
    assert set(METRIC_NAMES) == {each.name for each in fields(EngineSample)} - {"t_s"}


@pytest.mark.parametrize(
    ("field_name", "spelling"),
    [(field_name, name) for field_name, names in METRIC_NAMES.items() for name in names],
)
def test_each_spelling_is_read_on_its_own(field_name: str, spelling: str) -> None:
    page = f'# TYPE {spelling} gauge\n{spelling}{{engine="0",model_name="m"}} 0.25\n'
    sample = parse_metrics(page)
    known = {name: getattr(sample, name) for name in METRIC_NAMES}
    assert known.pop(field_name) == 0.25
    assert set(known.values()) == {None}


def test_a_page_of_vllm_0_8_is_read_in_its_older_spelling() -> None:
    page = (
        'vllm:num_requests_running{model_name="m"} 3.0\n'
        'vllm:gpu_cache_usage_perc{model_name="m"} 0.5\n'
        'vllm:gpu_prefix_cache_queries_total{model_name="m"} 900.0\n'
        'vllm:gpu_prefix_cache_hits_total{model_name="m"} 300.0\n'
        'vllm:gpu_prefix_cache_hits_created{model_name="m"} 1.7e+09\n'
    )
    sample = parse_metrics(page)
    assert (sample.kv_cache_usage, sample.requests_running) == (0.5, 3.0)
    assert (sample.prefix_cache_queries_total, sample.prefix_cache_hits_total) == (900.0, 300.0)
    assert sample.preemptions_total is None


def test_a_page_with_both_spellings_is_counted_once_by_the_newer() -> None:
    # as vLLM 0.10 prints it
    page = (
        'vllm:gpu_cache_usage_perc{engine="0"} 0.3\n'
        'vllm:kv_cache_usage_perc{engine="0"} 0.4\n'
        'vllm:gpu_prefix_cache_hits_total{engine="0"} 5\n'
        'vllm:prefix_cache_hits_total{engine="0"} 6\n'
    )
    sample = parse_metrics(page)
    assert (sample.kv_cache_usage, sample.prefix_cache_hits_total) == (0.4, 6.0)


def test_a_name_that_only_begins_like_ours_is_not_ours() -> None:
    page = (
        'vllm:num_requests_waiting_by_reason{reason="capacity"} 4\n'
        "vllm:num_preemptions_created 1.7e9\n"
        'vllm:prompt_tokens_by_source_total{source="local_compute"} 8\n'
        "other_vllm:num_requests_running 9\n"
    )
    assert parse_metrics(page) == UNKNOWN


def test_several_engines_add_their_counts_and_average_their_usage() -> None:
    page = (
        'vllm:kv_cache_usage_perc{engine="0"} 0.2\n'
        'vllm:kv_cache_usage_perc{engine="1"} 0.6\n'
        'vllm:num_requests_running{engine="0"} 3\n'
        'vllm:num_requests_running{engine="1"} 5\n'
        'vllm:num_preemptions_total{engine="0"} 1\n'
        'vllm:num_preemptions_total{engine="1"} 2\n'
    )
    sample = parse_metrics(page)
    assert sample.kv_cache_usage == pytest.approx(0.4)  # (0.2 + 0.6) / 2
    assert (sample.requests_running, sample.preemptions_total) == (8.0, 3.0)


def test_a_zero_is_known_and_a_missing_metric_is_not() -> None:
    assert parse_metrics("vllm:num_requests_waiting 0\n").requests_waiting == 0.0
    assert parse_metrics("") == UNKNOWN


@pytest.mark.parametrize("text", ["NaN", "+Inf", "-Inf"])
def test_a_value_that_is_not_finite_is_unknown(text: str) -> None:
    assert parse_metrics(f"vllm:kv_cache_usage_perc {text}\n") == UNKNOWN


def test_granted_none_is_unknown_and_false_is_known() -> None:
    page = (
        'vllm:cache_config_info{block_size="16",cache_dtype="fp8",enable_prefix_caching="False",'
        'kv_cache_memory_bytes="None",num_gpu_blocks="27500"} 1.0\n'
    )
    assert parse_granted(page) == GrantedKv(
        block_size=16, num_gpu_blocks=27500, cache_dtype="fp8", enable_prefix_caching=False
    )


def test_granted_is_unknown_where_engines_disagree() -> None:
    page = (
        'vllm:cache_config_info{engine="0",block_size="16",num_gpu_blocks="100"} 1\n'
        'vllm:cache_config_info{engine="1",block_size="16",num_gpu_blocks="90"} 1\n'
    )
    assert parse_granted(page) == GrantedKv(block_size=16)


@pytest.mark.parametrize("text", ["", "many", "1.5.2", "nan"])
def test_a_granted_figure_that_is_no_number_is_unknown(text: str) -> None:
    labels = f'num_gpu_blocks="{text}",kv_cache_max_concurrency="{text}"'
    assert parse_granted(f"vllm:cache_config_info{{{labels}}} 1\n") == GrantedKv()


@dataclass
class Endpoint:
    """What a test's metrics endpoint answers, and what it was asked."""

    url: str = ""
    status: int = 200
    body: bytes = REAL_PAGE.encode()
    delay_s: float = 0.0
    hang_up: bool = False
    paths: list[str] = field(default_factory=list)
    connections: set[int] = field(default_factory=set)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False


@contextmanager
def _serving() -> Iterator[Endpoint]:
    endpoint = Endpoint()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            endpoint.paths.append(self.path)
            endpoint.connections.add(self.client_address[1])
            time.sleep(endpoint.delay_s)
            with suppress(BrokenPipeError, ConnectionResetError):  # the reader gave up
                self._answer()

        def _answer(self) -> None:
            self.send_response(endpoint.status)
            self.send_header("Content-Length", str(len(endpoint.body)))
            self.end_headers()
            self.wfile.write(endpoint.body)
            # closed without a word, as servers do with a connection that was idle for too long
            self.close_connection = endpoint.hang_up

        def log_message(self, *_: object) -> None:
            pass

    with _Server(("127.0.0.1", 0), Handler) as server:
        endpoint.url = f"http://127.0.0.1:{server.server_address[1]}"
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield endpoint
        server.shutdown()


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    with _serving() as serving:
        yield serving


@pytest.fixture
def source(endpoint: Endpoint) -> Iterator[EngineSource]:
    reading = EngineSource(endpoint.url, timeout_s=10)
    yield reading
    reading.close()


@pytest.mark.parametrize(
    ("suffix", "asked"),
    [
        ("", "/metrics"),
        ("/", "/metrics"),
        ("/v1", "/metrics"),
        ("/v1/", "/metrics"),
        ("/llm/v1", "/llm/metrics"),
    ],
)
def test_the_page_lies_beside_v1(endpoint: Endpoint, suffix: str, asked: str) -> None:
    with closing(EngineSource(endpoint.url + suffix)) as source:
        (sample,) = source.read(2.0)
    assert replace(sample, t_s=2.0) == parse_metrics(REAL_PAGE, t_s=2.0)
    assert read_granted(endpoint.url + suffix) == parse_granted(REAL_PAGE)
    assert endpoint.paths == [asked, asked]


def test_readings_share_one_connection(endpoint: Endpoint, source: EngineSource) -> None:
    for now in (0.0, 0.2, 0.4):
        assert source.read(now)[0].kv_cache_usage is not None
    assert len(endpoint.paths) == 3
    assert len(endpoint.connections) == 1


def test_a_connection_that_the_server_closed_is_replaced_without_a_gap(
    endpoint: Endpoint, source: EngineSource
) -> None:
    endpoint.hang_up = True
    for now in (0.0, 0.2, 0.4):
        assert source.read(now)[0].kv_cache_usage is not None
    assert source.problems.count == 0
    assert len(endpoint.connections) == 3


def test_a_sample_is_stamped_with_the_answer_and_not_with_the_question(endpoint: Endpoint) -> None:
    # Asked at 5.0 s of its own time, answered at 5.2 s.
    with closing(EngineSource(endpoint.url, monotonic=iter([5.0, 5.2]).__next__)) as source:
        (sample,) = source.read(10.0)
    assert sample.t_s == pytest.approx(10.2)


def test_a_server_that_answers_too_late_is_a_gap_and_then_goes_on(endpoint: Endpoint) -> None:
    endpoint.delay_s = 4.0
    with closing(EngineSource(endpoint.url, timeout_s=2)) as source:
        assert source.read(1.0) == [EngineSample(t_s=1.0)]
        endpoint.delay_s = 0.0
        assert source.read(3.0)[0].kv_cache_usage is not None
    assert source.problems.count == 1
    assert "timed out" in (source.problems.first_message or "")


def test_an_answer_that_is_no_page_is_a_gap(endpoint: Endpoint, source: EngineSource) -> None:
    endpoint.status = 404
    assert source.read(1.0) == [EngineSample(t_s=1.0)]
    assert "404" in (source.problems.first_message or "")
    assert read_granted(endpoint.url) == GrantedKv()


def test_a_page_that_can_not_be_parsed_is_a_gap(endpoint: Endpoint, source: EngineSource) -> None:
    endpoint.body = b'vllm:kv_cache_usage_perc{engine="0} 0.5\n'
    assert source.read(1.0) == [EngineSample(t_s=1.0)]
    assert "ValueError" in (source.problems.first_message or "")


def test_a_server_that_is_gone_is_unknown() -> None:
    with _serving() as endpoint:
        url = endpoint.url
    with closing(EngineSource(url, timeout_s=0.5)) as source:
        assert source.read(1.0) == [EngineSample(t_s=1.0)]
    assert "ConnectionRefusedError" in (source.problems.first_message or "")
    assert read_granted(url) == GrantedKv()


def test_an_address_without_a_host_is_refused_at_once() -> None:
    with pytest.raises(ValueError, match="no http"):
        EngineSource("localhost:8000")


@dataclass
class Costed:
    """A source, and the CPU time that each of its readings took."""

    source: EngineSource
    cost_s: list[float] = field(default_factory=list)
    enough: threading.Event = field(default_factory=threading.Event)

    @property
    def problems(self) -> Problems:
        return self.source.problems

    def read(self, now: float) -> list[EngineSample]:
        before = time.thread_time()
        found = self.source.read(now)
        self.cost_s.append(time.thread_time() - before)
        if len(self.cost_s) == 15:
            self.enough.set()
        return found

    def close(self) -> None:
        self.source.close()


def test_the_samplers_own_cost_stays_under_two_per_cent_of_a_core(endpoint: Endpoint) -> None:
    # A page as long as the real one, which has some 600 lines and 57 KB.
    filler = 'vllm:e2e_request_latency_seconds_bucket{engine="0",le="0.3",model_name="m"} 1.0\n'
    endpoint.body += filler.encode() * math.ceil((57_000 - len(endpoint.body)) / len(filler))
    seen: list[Sample] = []
    with (
        closing(Costed(EngineSource(endpoint.url, timeout_s=60))) as source,
        Sampler([source], Clock(), seen.append) as sampler,
    ):
        assert source.enough.wait(60)
    assert len(seen) >= 15
    # What two readings of three cost at the most; a core that was taken away spoils single ones.
    usual_s = sorted(source.cost_s)[len(source.cost_s) * 2 // 3]
    assert usual_s / sampler.interval_s < 0.02
    assert sampler.cpu_share is not None
    assert sampler.cpu_share > 0
    assert sampler.problems == ()


def _pour(listener: socket.socket, pause_s: float) -> None:
    """Answer each that asks with a page without end, until the listener is closed."""
    lines = 1 if pause_s else 5000
    with suppress(OSError):
        while True:
            connection, _ = listener.accept()
            with connection, suppress(OSError):
                connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
                while True:
                    connection.sendall(b"vllm:kv_cache_usage_perc 0.5\n" * lines)
                    time.sleep(pause_s)


def _read_once(port: int) -> str:
    """Read such a page; the reading must be a gap. Return what is said of it."""
    with closing(EngineSource(f"http://127.0.0.1:{port}", timeout_s=0.5)) as source:
        (sample,) = source.read(0.0)
    assert sample.kv_cache_usage is None
    return str(source.problems.first_message)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("pause_s", [0.0, 0.1])
def test_a_page_without_end_is_a_gap_and_holds_nothing_up(pause_s: float) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        pouring = threading.Thread(target=_pour, args=(listener, pause_s), daemon=True)
        pouring.start()
        port = listener.getsockname()[1]
        # Whoever pours may be held up for longer than a reading waits: that is a gap as well.
        assert any("without end" in _read_once(port) for _ in range(5))
        listener.shutdown(socket.SHUT_RDWR)
        pouring.join(60)
        assert not pouring.is_alive()
