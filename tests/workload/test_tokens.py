from __future__ import annotations

import pytest

from harness.errors import ModelConfigError
from harness.workload import SAFE_TOKENS, TokenRange, token_range


def test_without_a_model_the_stated_safe_range_is_used():
    assert token_range(None) == TokenRange(1000, 20_000)
    assert len(SAFE_TOKENS) == 19_001


@pytest.mark.parametrize(
    "config",
    [
        {"vocab_size": 49_152, "bos_token_id": 1, "eos_token_id": 2},  # SmolLM2
        {"vocab_size": 128_256, "eos_token_id": [128_001, 128_008, 128_009]},  # Llama 3.1
        {"model_type": "gemma3", "text_config": {"vocab_size": 262_208}, "eos_token_id": [1, 106]},
        {"vocab_size": 32_000},  # Llama 2
        {},
    ],
)
def test_usual_vocabularies_hold_the_safe_range(config):
    assert token_range(config) == SAFE_TOKENS


def test_a_small_vocabulary_keeps_clear_of_both_ends():
    # An eighth of 512 is 64: ids 64 to 512 − 64 − 1 = 447.
    assert token_range({"vocab_size": 512}) == TokenRange(64, 447)


def test_special_ids_inside_the_range_are_avoided_by_taking_the_longest_run():
    # Runs between the specials: 1000–5999, 6001–20,000; the second is longer.
    config = {"vocab_size": 50_000, "image_token_index": 6000}
    assert token_range(config) == TokenRange(6001, 20_000)


def test_specials_of_a_nested_text_config_count_too():
    config = {"text_config": {"vocab_size": 50_000, "pad_token_id": 15_000}}
    assert token_range(config) == TokenRange(1000, 14_999)


def test_a_vocabulary_of_specials_alone_is_refused_with_the_field_named():
    with pytest.raises(ModelConfigError, match="vocab_size"):
        token_range({"vocab_size": 1, "bos_token_id": 0})


def test_an_empty_range_can_not_be_made():
    with pytest.raises(ValueError, match="no token range"):
        TokenRange(5, 4)
