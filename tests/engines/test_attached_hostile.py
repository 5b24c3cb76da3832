"""What a stranger's server says of itself can be stored and read back, or is unknown."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from harness import store
from harness.engines import attached
from harness.errors import NotFound
from harness.plausible import run_fault
from harness.record import GrantedKv, ServerFacts
from harness.telemetry.engine import EngineSource, parse_metrics, read_granted
from tests.standin.hostile import dripping, hostile_server, page
from tests.test_store import started

KEY = "sk-SECRET0123"
INFO = b"vllm:cache_config_info{block_size=%b,num_gpu_blocks=%b,cache_dtype=%b} 1\n"
MODELS = {"data": [{"id": "m"}]}


def answers(
    version: object = None, metrics: bytes = b"", models: object = MODELS
) -> Callable[[str], Iterable[bytes]]:
    """An attached server's three pages."""
    stated = {"version": "0.32.0"} if version is None else version
    pages = {"/v1/models": models, "/version": stated, "/metrics": metrics}
    return lambda path: page(pages[path])


def facts(answer: Callable[[str], Iterable[bytes]]) -> ServerFacts:
    with hostile_server(answer) as url:
        return attached.facts(url, KEY)


def stored(found: ServerFacts, root: Path) -> ServerFacts | None:
    """The facts as they are read back from a sealed trial."""
    with store.TrialFolder(root, started()) as folder:
        written = folder.seal_with(status="sealed", server=found, load_end_s=9.5)
    assert run_fault(written) is None
    return store.read_trial(folder.path).run.server


@pytest.mark.parametrize(
    "version",
    [
        *({"version": odd} for odd in (123, ["a"], {}, None, True, "", "9" * 900, "a\x1b[31m")),
        *({"version": odd} for odd in ("a\u2028b", "\u202eab", f"v{KEY}")),
        b'{"version": "\\ud800"}',
        b'{"version": 1' + b"0" * 5000 + b"}",
        b"[" * 50_000,
        [1, 2],
        b"\xff",
    ],
)
def test_a_version_that_is_no_short_text_is_unknown(version: object, tmp_path: Path) -> None:
    found = facts(answers(version))
    assert (found.served_model, found.engine_version) == ("m", None)
    assert stored(found, tmp_path) == found


def test_a_version_that_is_one_is_stored(tmp_path: Path) -> None:
    found = facts(answers({"version": "0.32.0+cpu"}))
    assert stored(found, tmp_path) == found
    assert found.engine_version == "0.32.0+cpu"


@pytest.mark.parametrize("count", [b'"0"', b'"-5"', b'"%d"' % (1 << 60), b'"1%b"' % (b"0" * 5000)])
def test_a_pool_that_none_can_be_is_unknown_and_the_run_stands(
    count: bytes, tmp_path: Path
) -> None:
    found = facts(answers(metrics=INFO % (count, b'"100"', b'"auto"')))
    assert found.granted == GrantedKv(num_gpu_blocks=100, cache_dtype="auto")
    assert stored(found, tmp_path) == found


@pytest.mark.parametrize("dtype", [b'"%b"' % KEY.encode(), b'"\x1b[2J"', b'"%b"' % (b"f" * 999)])
def test_a_kv_dtype_that_is_no_short_text_is_unknown(dtype: bytes, tmp_path: Path) -> None:
    found = facts(answers(metrics=INFO % (b'"16"', b'"100"', dtype)))
    assert found.granted == GrantedKv(block_size=16, num_gpu_blocks=100)
    assert stored(found, tmp_path) == found


@pytest.mark.parametrize(
    ("models", "why"),
    [
        ({"data": [{"id": "a\x1b[2J"}]}, "U+001B, a control character"),
        (b'{"data": [{"id": "a\\ud800"}]}', "half of a surrogate pair"),
        ({"data": [{"id": 5}]}, "5 is no name"),
        ({"data": [{}]}, "None is no name"),
        ({"data": [7]}, "None is no name"),
        ({"data": [{"id": " "}]}, "its name is blank"),
        ({"data": [{"id": "m" * 5000}]}, "5,000 characters"),
        ({"data": [{"id": f"m-{KEY}"}]}, "holds the key"),
        ({"data": []}, "the server lists no model"),
        ({"data": "m"}, "the server lists no model"),
        ([], "the server lists no model"),
        ({"data": [{"id": "m", "x": "y" * (2 << 20)}]}, "larger than 1 MiB"),
    ],
)
def test_a_model_list_that_gives_none_says_why(models: object, why: str) -> None:
    with pytest.raises(NotFound) as caught:
        facts(answers(models=models))
    assert why in str(caught.value)
    assert KEY not in str(caught.value)
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize("key", ["", "m", "0", "EMPTY", "None"])
def test_a_word_that_is_set_for_want_of_a_key_hides_nothing(key: str) -> None:
    names = {"data": [{"id": "EMPTY-m-None"}]}
    with hostile_server(answers(models=names)) as url:
        found = attached.facts(url, key)
    assert (found.served_model, found.engine_version) == ("EMPTY-m-None", "0.32.0")


def test_the_first_name_that_can_be_used_is_taken() -> None:
    assert facts(answers(models={"data": [{"id": 5}, {"id": "m"}]})).served_model == "m"


@pytest.mark.parametrize(
    "pieces",
    [
        page(b"", f"401 {KEY}"),
        [f"HTTP/1.1 {KEY}\r\n\r\n".encode()],
        [b"HTTP/1.1 " + b"x" * 60 + KEY.encode() + b"\r\n\r\n"],
        [b"HTTP/1.1 401 " + b"x" * 190 + KEY.encode() + b"\r\n\r\n"],
    ],
)
def test_a_key_in_a_refusal_is_not_told(pieces: list[bytes]) -> None:
    with pytest.raises(NotFound) as caught:
        facts(lambda _: pieces)
    assert "sk-S" not in str(caught.value)


def drip_head(_: str) -> Iterable[bytes]:
    yield from dripping(b"x")


def drip_headers(_: str) -> Iterable[bytes]:
    yield b"HTTP/1.1 200 OK\r\n"
    yield from dripping(b"a: b\r\n")


def drip_body(_: str) -> Iterable[bytes]:
    yield b"HTTP/1.1 200 OK\r\ncontent-length: 100000\r\n\r\n"
    yield from dripping(b" ")


@pytest.mark.parametrize("drip", [drip_head, drip_headers, drip_body])
def test_an_answer_that_drips_is_waited_for_once_and_no_longer(
    drip: Callable[[str], Iterable[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attached, "TIMEOUT_S", 0.5)
    begun = time.monotonic()
    with hostile_server(drip) as url:
        with pytest.raises(NotFound, match=r"no whole answer after 0\.5 s"):
            attached.facts(url, None)
        assert read_granted(url, 0.5) == GrantedKv()
        with closing(EngineSource(url, timeout_s=0.5)) as source:
            (sample,) = source.read(0.0)
    assert sample.kv_cache_usage is None
    # Three times half a second, and room for a machine that stalls; a byte is due every 0.1 s.
    assert time.monotonic() - begun < 20


@pytest.mark.parametrize(
    ("line", "field"),
    [
        ("vllm:kv_cache_usage_perc 55", "kv_cache_usage"),
        ("vllm:kv_cache_usage_perc -0.5", "kv_cache_usage"),
        ("vllm:num_requests_running -3", "requests_running"),
        ("vllm:num_preemptions_total 1e300", "preemptions_total"),
        ("vllm:prompt_tokens_total 1e308\nvllm:prompt_tokens_total 1e308", "prompt_tokens_total"),
        ("vllm:generation_tokens_total +Inf", "generation_tokens_total"),
    ],
)
def test_a_gauge_that_can_not_be_true_is_unknown(line: str, field: str) -> None:
    assert getattr(parse_metrics(line + "\n"), field) is None


def test_more_hits_than_queries_leave_both_unknown() -> None:
    text = "vllm:prefix_cache_queries_total 64\nvllm:prefix_cache_hits_total %d\n"
    kept, lied = parse_metrics(text % 64), parse_metrics(text % 65)
    assert (kept.prefix_cache_queries_total, kept.prefix_cache_hits_total) == (64.0, 64.0)
    assert (lied.prefix_cache_queries_total, lied.prefix_cache_hits_total) == (None, None)


def test_a_stored_run_whose_server_told_nonsense_of_itself_is_read_without_it(
    tmp_path: Path,
) -> None:
    found = replace(facts(answers()), granted=GrantedKv(block_size=16, num_gpu_blocks=100))
    stored(found, tmp_path)
    path = tmp_path / started().trial.trial_id / store.RUN_FILE
    good = path.read_text()
    for old, new, kept in (
        ('"num_gpu_blocks": 100', '"num_gpu_blocks": 0', GrantedKv(block_size=16)),
        ('"num_gpu_blocks": 100', f'"num_gpu_blocks": {10**23}', None),
        ('"num_gpu_blocks": 100', '"num_gpu_blocks": "x"', GrantedKv()),
        ('"engine_version": "0.32.0"', '"engine_version": 123', found.granted),
    ):
        assert old in good
        path.write_text(good.replace(old, new))
        server = store.read_trial(path.parent).run.server
        assert server is not None
        assert server.granted == kept or kept is None
        assert server.granted.num_gpu_blocks in (None, 100)
        assert store.is_sealed(tmp_path, started().trial.trial_id)
