from __future__ import annotations

import json
import resource
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from harness.cli.calc import calc
from harness.engines import hub
from harness.errors import InputError, NotFound, UnsupportedModel
from harness.units import GIB, MIB

LLAMA_3 = "meta-llama/Meta-Llama-3-8B"
A100 = ("--memory-gib", "80", "--weights-gib", "16", "--overhead-gib", "2")
ROOT = Path(__file__).resolve().parents[2]

app = typer.Typer(rich_markup_mode=None)
app.command()(calc)


def text(*arguments: str) -> str:
    result = CliRunner().invoke(app, list(arguments))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.stdout


def figures(*arguments: str) -> Any:
    return json.loads(text(*arguments, "--json"))


def config_file(folder: Path, **config: Any) -> str:
    file = folder / "config.json"
    file.write_text(json.dumps(config))
    return str(file)


SMALL = {
    "model_type": "llama",
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "hidden_size": 512,
    "max_position_embeddings": 4096,
    "dtype": "bfloat16",
}


def test_exercise_1_comes_out_right() -> None:
    found = figures(LLAMA_3, *A100, "--requests", "10")
    assert found["kv_bytes_per_token"] == 131072
    assert found["block_size"] == 16
    rows = {row["context_tokens"]: row for row in found["per_context"]}
    assert {n: r["kv_bytes_per_request"] // MIB for n, r in rows.items()} == {
        2048: 256,
        8192: 1024,
        32768: 4096,
        131072: 16384,
    }
    assert [row["max_concurrency"] for row in rows.values()] == [248.0, 62.0, 15.5, 3.875]
    assert rows[32768]["kv_bytes_for_requests"] == 40 * GIB


def test_exercise_2_compares_heads() -> None:
    found = figures(LLAMA_3, *A100, "--compare", "mha,gqa,mqa", "--context", "8k,32k")
    by_name = {variant["variant"]: variant["per_context"] for variant in found["variants"]}
    sizes = {name: rows[0]["kv_bytes_per_request"] // MIB for name, rows in by_name.items()}
    assert sizes == {"mha": 4096, "gqa": 1024, "mqa": 128}
    assert int(by_name["gqa"][1]["max_concurrency"]) == 15
    assert int(by_name["mha"][1]["max_concurrency"]) == 3


def test_dtypes_can_be_compared_too() -> None:
    found = figures(LLAMA_3, "--compare", "fp16,fp8", "--context", "32k")
    sizes = [v["per_context"][0]["kv_bytes_per_request"] // MIB for v in found["variants"]]
    assert sizes == [4096, 2048]


def test_the_chapters_error_is_told_beside_its_own_model_and_nowhere_else() -> None:
    assert any("erratum" in note for note in figures(LLAMA_3)["notes"])
    assert "erratum" in text(LLAMA_3)
    assert not any("erratum" in note for note in figures("Qwen/Qwen3-8B")["notes"])


def test_json_has_every_promised_key_and_null_for_what_is_unknown() -> None:
    found = figures(LLAMA_3)
    assert set(found) >= {
        "model",
        "kv_cache_dtype",
        "kv_bytes_per_token",
        "block_size",
        "layer_groups",
        "per_context",
        "kv_cache_memory_bytes",
        "num_blocks",
        "kv_cache_tokens",
        "max_concurrency_at_max_model_len",
        "notes",
    }
    assert found["kv_cache_memory_bytes"] is None
    assert found["num_blocks"] is None
    assert found["per_context"][0]["max_concurrency"] is None
    assert set(found["layer_groups"][0]) == {
        "kind",
        "layers",
        "window",
        "block_size",
        "page_bytes",
        "blocks_per_request",
    }


def test_a_given_pool_is_cut_as_the_engine_cuts_it() -> None:
    # 1 GiB of 23,040 bytes per token: 46,592 tokens in 364 blocks of 128, as a real server said.
    found = figures(
        "smollm2-135m-instruct", "--kv-memory-gib", "1", "--device", "cpu", "--max-model-len", "4k"
    )
    assert (found["num_blocks"], found["kv_cache_tokens"]) == (364, 46592)
    assert found["max_concurrency_at_max_model_len"] == pytest.approx(11.375)


def test_overrides_are_laid_over_the_config() -> None:
    window = {"sliding_window": 512, "model_type": "mistral"}
    found = figures(
        "smollm2-135m-instruct",
        *("--kv-memory-gib", "1", "--device", "cpu", "--max-model-len", "4096"),
        *("--hf-overrides", json.dumps(window)),
    )
    # ⌈(511 + 2,048) / 128⌉ + 1 = 21 blocks of 364.
    assert found["kv_cache_tokens"] == 70997
    assert found["max_concurrency_at_max_model_len"] == pytest.approx(364 / 21)


def test_a_gpu_brings_a_budget_its_levers_and_lower_bounds() -> None:
    found = figures("meta-llama/Llama-3.1-8B-Instruct", "--gpu", "h100")
    memory = found["memory"]
    assert memory["gpu_memory_utilization"] == 0.92
    used = sum(term["bytes"] for term in memory["terms"])
    assert memory["kv_bytes"] == int(0.92 * memory["total_bytes"]) - used
    assert found["kv_cache_memory_bytes"] == memory["kv_bytes"]
    assert memory["levers"]
    bounds = found["roofline"]
    assert bounds["source"]
    assert bounds["per_context"][0]["ttft_s"] < bounds["per_context"][-1]["ttft_s"]


def test_a_gpu_bounds_the_throughput_of_requests_that_run_at_once() -> None:
    found = figures("meta-llama/Llama-3.1-8B-Instruct", "--gpu", "a100-80gb", "--requests", "32")
    bounds = found["roofline"]
    short, _, long, longest = bounds["per_context"]
    # A step reads the weights once and 2,048 · 131,072 B of keys and values per request: each
    # further request costs 268,435,456 B / 2.039e12 B/s = 131.7 µs.
    step_s = short["tpot_s"] + 31 * 268_435_456 / bounds["bandwidth_bytes_per_s"]
    assert short["requests_at_once"] == 32
    assert short["output_tokens_per_s"] == pytest.approx(32 / step_s)
    # At 32K no more than 14 fit, at 128K three.
    assert [long["requests_at_once"], longest["requests_at_once"]] == [14, 3]
    assert "2,765 tok/s" in text(
        "meta-llama/Llama-3.1-8B-Instruct", "--gpu", "a100-80gb", "--requests", "32"
    )


def test_without_a_number_of_requests_the_bound_is_that_of_all_that_fit() -> None:
    found = figures("meta-llama/Llama-3.1-8B-Instruct", "--gpu", "a100-80gb")
    fitting = [row["max_concurrency"] for row in found["per_context"]]
    at_once = [row["requests_at_once"] for row in found["roofline"]["per_context"]]
    assert at_once == [int(count) for count in fitting]


def test_where_nothing_fits_nothing_is_put_out() -> None:
    found = figures("meta-llama/Llama-3.1-70B-Instruct", "--gpu", "a100-40gb")
    row = found["roofline"]["per_context"][0]
    assert (row["requests_at_once"], row["output_tokens_per_s"]) == (None, None)


def test_bounds_that_can_not_be_worked_out_say_why(tmp_path: Path) -> None:
    odd = config_file(tmp_path, **SMALL, quantization_config={"quant_method": "unheard-of"})
    found = figures(odd, "--gpu", "h100", "--context", "2k")
    assert found["roofline"] is None
    assert any(
        note.startswith("no bounds on speed:") and "unheard-of" in note for note in found["notes"]
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--quantization", "fo8"), "unknown quantisation of weights 'fo8'"),
        (("--dtype", "foo"), "dtype: unknown dtype 'foo' of weights and activations"),
        (("--max-num-batched-tokens", "0"), "max_num_batched_tokens must be at least 1"),
        (("--block-size", "0"), "block_size must be at least 1"),
        (("--max-model-len", ""), "'' is not a token count"),
        (("--compare", ","), "--compare names no variant"),
        (("--kv-dtype", "foo"), "unknown KV dtype 'foo'"),
    ],
)
@pytest.mark.parametrize("gpu", [(), ("--gpu", "h100")])
def test_what_is_no_value_is_refused_by_its_own_name(
    options: tuple[str, ...], message: str, gpu: tuple[str, ...]
) -> None:
    with pytest.raises(InputError) as caught:
        text(LLAMA_3, *options, *gpu)
    assert message in str(caught.value)


def test_a_model_that_does_not_fit_gets_a_negative_pool_and_a_note() -> None:
    found = figures("meta-llama/Llama-3.1-70B-Instruct", "--gpu", "a100-40gb")
    assert found["kv_cache_memory_bytes"] < 0
    assert found["num_blocks"] == 0
    assert any("does not fit" in note for note in found["notes"])


def test_kv_figures_need_only_kv_fields(tmp_path: Path) -> None:
    found = figures(config_file(tmp_path, **SMALL), "--memory-gib", "24")
    assert found["kv_bytes_per_token"] == 4096
    assert found["memory"] is None
    assert any("vocab_size" in note for note in found["notes"])


def test_a_folder_is_taken_for_its_config(tmp_path: Path) -> None:
    config_file(tmp_path, **SMALL)
    assert figures(str(tmp_path))["kv_bytes_per_token"] == 4096


def test_figures_are_per_gpu() -> None:
    found = figures(LLAMA_3, "--tp", "2")
    assert (found["kv_bytes_per_token"], found["kv_bytes_per_token_unsplit"]) == (65536, 131072)
    assert "65,536 B per GPU (all layers; 131,072 B in one piece)" in text(LLAMA_3, "--tp", "2")
    assert any("per GPU" in note for note in found["notes"])


def test_a_gpu_schedules_ahead_by_default_and_charges_windows_twice() -> None:
    arguments = ("openai/gpt-oss-20b", "--kv-memory-gib", "10", "--max-num-batched-tokens", "2048")
    one, two = figures(*arguments, "--no-async-scheduling"), figures(*arguments)
    # ⌈(127 + 2,048) / 16⌉ + 1 and ⌈(127 + 4,096) / 16⌉ + 1.
    assert one["layer_groups"][0]["blocks_per_request"] == 137
    assert two["layer_groups"][0]["blocks_per_request"] == 265
    # The CPU never runs ahead: ⌈(127 + 2,048) / 32⌉ + 1 in blocks of 32.
    cpu = figures(*arguments, "--device", "cpu", "--block-size", "32", "--async-scheduling")
    assert cpu["layer_groups"][0]["blocks_per_request"] == 69


def test_a_dtype_that_no_latent_backend_takes_is_told() -> None:
    shown = text("deepseek-ai/DeepSeek-V2-Lite", "--kv-dtype", "int4_per_token_head")
    assert "no MLA backend of vLLM 0.32.0 takes int4_per_token_head" in " ".join(shown.split())
    assert "no MLA backend" not in text("deepseek-ai/DeepSeek-V2-Lite", "--kv-dtype", "fp8")


def test_levers_stand_in_requests_of_the_longest_context_that_is_asked_for() -> None:
    card = ("--gpu", "l40s", "--context", "8k")
    now = figures("Qwen/Qwen3-8B", *card)
    twice = now["memory"]["levers"][0]
    assert twice["change"].startswith("twice the GPUs")
    # The same as asking for two GPUs at once.
    two = figures("Qwen/Qwen3-8B", *card, "--tp", "2")["per_context"][0]["max_concurrency"]
    assert (twice["requests"], twice["context_tokens"]) == (two, 8192)
    assert twice["requests"] > 2 * now["per_context"][0]["max_concurrency"]
    shown = text("Qwen/Qwen3-8B", *card)
    assert "requests of 8,192 that fit then" in shown
    assert "44.99 GiB is what nvidia-smi" in " ".join(shown.split())


def test_the_size_that_the_engine_prints_is_called_no_rate_where_layers_free_blocks() -> None:
    windowed = text("mistralai/Mistral-7B-v0.1", "--kv-memory-gib", "22")
    assert "tokens, as the engine prints it" in windowed
    assert "as the engine prints it" not in text(LLAMA_3, *A100)


def test_a_pipeline_keeps_a_step_per_stage_and_one_ahead() -> None:
    arguments = ("openai/gpt-oss-20b", "--max-num-batched-tokens", "2048", "--pp", "2")
    # ⌈(127 + 3 × 2,048) / 16⌉ + 1.
    assert figures(*arguments)["layer_groups"][0]["blocks_per_request"] == 393


def test_the_text_names_units_and_leaves_no_unknown_as_zero() -> None:
    shown = text(LLAMA_3, *A100)
    for piece in ("131,072 B", "256.00 MiB", "16.00 GiB", "248.00", "62.00 GiB", "notes:"):
        assert piece in shown


def test_without_a_memory_the_rows_of_a_pool_are_left_out_and_a_note_says_what_to_add() -> None:
    shown = text(LLAMA_3, "--requests", "10")
    assert "KV pool" not in shown
    assert "requests that fit" not in shown
    assert "of the card" not in shown
    assert "add --gpu NAME" in shown
    assert "40.00 GiB" in shown
    assert "add --gpu" not in text(LLAMA_3, *A100)


def test_a_share_of_memory_says_that_it_is_of_the_whole_card() -> None:
    shown = text(LLAMA_3, *A100, "--requests", "10", "--context", "32k")
    # 40 GiB and the engine's own block beside 18 of 80.
    assert "of the card, with weights" in shown
    assert "72.5 %" in shown


def test_decoding_that_no_batch_makes_busy_is_told_in_words_and_not_as_a_dash() -> None:
    model = ("meta-llama/Llama-3.1-8B-Instruct", "--gpu", "h100-sxm")
    long = text(*model, "--context", "2k")
    assert "from batch —" not in long
    assert "at 2,048 tokens decoding is bound by memory whatever the batch" in long
    short = text(*model, "--context", "64")
    assert "at 64 tokens decoding is bound by arithmetic from a batch of " in short


def test_compared_variants_stand_side_by_side_first() -> None:
    shown = text(LLAMA_3, *A100, "--compare", "mha,gqa,mqa", "--context", "8k,32k")
    table = shown.split("as mha")[0]
    size = next(row for row in table.splitlines() if "KV of 8,192 tokens" in row)
    # Exercise 2: 4 GiB, 1 GiB and 128 MiB at 8K; 3.875, 15.5 and 124 requests of 32K in 62 GiB.
    assert size.split()[-6:] == ["4.00", "GiB", "1.00", "GiB", "128.00", "MiB"]
    requests = next(r for r in table.splitlines() if "requests of 32,768 that fit" in r)
    assert requests.split()[-3:] == ["3.88", "15.50", "124.00"]


def test_the_plot_is_a_png_of_some_size(tmp_path: Path) -> None:
    file = tmp_path / "kv.png"
    text(LLAMA_3, *A100, "--compare", "mha,gqa,mqa", "--plot", str(file))
    head = file.read_bytes()[:24]
    assert head[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", head[16:24])
    assert width > 1000
    assert height > 400


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--context", "8q"), "token count"),
        (("--context", ","), "no length"),
        (("--context", "0"), "no length"),
        (("--context", "99999999999k"), "no length"),
        (("--hf-overrides", "[" * 100_000), "no JSON"),
        (("--gpu", "a100", "--memory-gib", "80"), "contradict"),
        (("--gpu-memory-utilization", "1.5"), "not in"),
        (("--memory-gib", "-1"), "no size"),
        (("--memory-gib", "nan"), "no size"),
        (("--kv-memory-gib", "inf"), "no size"),
        (("--compare", "mhx"), "unknown variant"),
        (("--device", "tpu"), "unknown device"),
        (("--kv-dtype", "fp7"), "unknown KV dtype"),
        (("--hf-overrides", "{"), "no JSON"),
        (("--hf-overrides", "[]"), "JSON object"),
        (("--tp", "3"), "can't be split"),
        (("--kv-memory-gib", "1e308"), "no size"),
        (("--pp", "2147483648"), "pipeline_parallel_size must be at most 512, not 2.14748e\\+09"),
        (("--block-size", "9" * 30), "block_size must be at most"),
        (("--plot", "figure.svg"), "no PNG"),
        (("--plot", "/nowhere/figure.png"), "does not exist"),
    ],
)
def test_bad_input_is_told_in_a_sentence(arguments: tuple[str, ...], message: str) -> None:
    with pytest.raises(InputError, match=message):
        text(LLAMA_3, *arguments)


def test_heads_of_a_latent_model_can_not_be_regrouped() -> None:
    with pytest.raises(UnsupportedModel, match="no KV heads"):
        text("deepseek-ai/DeepSeek-V2-Lite", "--compare", "mha")


def test_an_unknown_id_is_asked_of_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def answer(name: str) -> dict[str, Any]:
        asked.append(name)
        return SMALL

    monkeypatch.setattr(hub, "fetch_config", answer)
    assert figures("someone/something")["kv_bytes_per_token"] == 4096
    assert asked == ["someone/something"]


@pytest.mark.parametrize("path", ["folder/config.json", "./nowhere", "../nowhere", "/nowhere"])
def test_a_missing_file_is_not_asked_of_the_hub(monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    monkeypatch.setattr(hub, "fetch_config", lambda name: pytest.fail(f"asked for {name}"))
    with pytest.raises(NotFound):
        text(path)


def test_it_answers_in_a_few_seconds_of_cpu_time_and_loads_no_heavy_library() -> None:
    probe = (
        "import sys; sys.argv = ['kvbench', 'calc', 'Qwen/Qwen3-8B', '--gpu', 'l4', '--json'];"
        "from harness.cli import app; code = 0\n"
        "try: app.main()\n"
        "except SystemExit as stop: code = stop.code\n"
        "heavy = {'torch', 'vllm', 'transformers', 'matplotlib', 'pandas'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
        "sys.exit(code)"
    )
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, "-c", probe], cwd=ROOT, capture_output=True, text=True, check=False
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["model"] == "Qwen/Qwen3-8B"
    # A loaded machine takes as long as it likes; what the process itself takes is a second at most
    # on a slow core.
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 3
