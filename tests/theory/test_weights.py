from __future__ import annotations

import pytest

from harness.errors import ModelConfigError
from harness.specs.model import model_spec, read_config
from harness.theory.settings import EngineSettings
from harness.theory.weights import parameter_count, repacked_bytes, weight_footprint
from tests.theory.small import HYBRID, LATENT, LLAMA, shipped, small


def parts(model: object, **settings: object) -> dict[str, int]:
    found = weight_footprint(model, EngineSettings(**settings))  # type: ignore[arg-type]
    return dict(found.by_part)


def test_a_small_model_is_counted_matrix_by_matrix() -> None:
    # vocabulary 1,000 → 1,024 rows of 512; Q and O of 512², K and V of 512 × 256; three
    # matrices of 512 × 1,024; nine norms of 512; a rotary table of 4,096 × 64. Two bytes each.
    assert parts(small()) == {
        "head": 1024 * 512 * 2,
        "embedding": 1024 * 512 * 2,
        "attention": 4 * (2 * 512 * 512 + 2 * 512 * 256) * 2,
        "mlp": 4 * 3 * 512 * 1024 * 2,
        "norm": 9 * 512 * 2,
        "rotary table": 4096 * 64 * 2,
    }


def test_tied_embeddings_are_held_once() -> None:
    assert "embedding" not in parts(small(tie_word_embeddings=True))


def test_tensor_parallelism_splits_matrices_and_replicates_kv_heads_beyond_their_number() -> None:
    whole, eighth = parts(small()), parts(small(), tensor_parallel_size=8)
    assert eighth["mlp"] == whole["mlp"] // 8
    # Q and O are split by eight; one KV head of the four is kept: 512 × 64 for K and for V.
    assert eighth["attention"] == 4 * (2 * 512 * 64 + 2 * 512 * 64) * 2
    assert eighth["rotary table"] == whole["rotary table"]


def test_a_pipeline_is_as_full_as_its_fullest_stage() -> None:
    halves = parts(small(), pipeline_parallel_size=2)
    assert halves["mlp"] == 2 * 3 * 512 * 1024 * 2
    # Embedding, norms and rotary table are on the first stage, the head is on the last.
    assert ("embedding" in halves) != ("head" in halves)


def test_experts_count_in_full_and_their_router_beside_them() -> None:
    model = small(num_local_experts=4, num_experts_per_tok=2)
    found = parts(model)
    assert found["experts"] == 4 * 4 * 3 * 512 * 1024 * 2
    assert found["router"] == 4 * 4 * 512 * 2


def test_latent_attention_holds_its_up_projection_twice() -> None:
    model = small(LATENT, qk_nope_head_dim=64, v_head_dim=64, q_lora_rank=None)
    # Q 512 · 8 · 96; down 512 · 128; up 96 · 8 · 128, twice; O 8 · 64 · 512.
    per_layer = 512 * 8 * 96 + 512 * 128 + 2 * 96 * 8 * 128 + 8 * 64 * 512
    assert parts(model)["attention"] == 4 * per_layer * 2


def test_a_recurrent_layer_has_projections_gates_and_a_convolution() -> None:
    # 96 channels and 32 gates in, two gates per head, 32 out, and 96 · 4 filters.
    per_layer = 512 * (96 + 32 + 2 * 4) + 32 * 512 + 96 * 4
    assert parts(small(HYBRID))["recurrent"] == 3 * per_layer * 2


def test_quantised_linear_layers_leave_the_embeddings_alone() -> None:
    plain, packed = parts(small()), parts(small(), quantization="fp8")
    assert packed["head"] == plain["head"]
    assert packed["mlp"] == pytest.approx(plain["mlp"] / 2, rel=0.001)


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("meta-llama/Llama-3.1-8B", 8.03),
        ("meta-llama/Llama-3.1-70B-Instruct", 70.55),
        ("Qwen/Qwen3-30B-A3B", 30.53),
        ("mistralai/Mixtral-8x7B-Instruct-v0.1", 46.70),
        ("openai/gpt-oss-20b", 20.9),
        ("google/gemma-2-9b-it", 9.24),
        ("HuggingFaceTB/SmolLM2-135M-Instruct", 0.1345),
        ("ai21labs/Jamba-v0.1", 51.6),
        ("nvidia/NVIDIA-Nemotron-Nano-9B-v2", 8.89),
    ],
)
def test_parameters_match_what_the_makers_say(name: str, billions: float) -> None:
    assert parameter_count(shipped(name)) / 1e9 == pytest.approx(billions, rel=0.01)


def test_missing_widths_are_an_error_for_weights_only() -> None:
    thin = {key: value for key, value in LLAMA.items() if key != "intermediate_size"}
    with pytest.raises(ModelConfigError, match="intermediate_size"):
        weight_footprint(small(thin), EngineSettings())


def test_the_cpu_backend_holds_its_linear_weights_twice() -> None:
    # SmolLM2: q and o 576·576 each, k and v 576·192 each, three of 576·1536 = 3,538,944 a layer;
    # 30 layers × 2 B = 212,336,640 B.
    spec = model_spec(read_config("smollm2-135m-instruct"), name="smollm2")
    footprint = weight_footprint(spec, EngineSettings(device="cpu"))
    assert repacked_bytes(footprint) == 212_336_640
