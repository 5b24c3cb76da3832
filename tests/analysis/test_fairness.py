from dataclasses import replace

import pytest

from harness.analysis.fairness import fairness
from harness.record import GrantedKv
from tests.analysis.build import judged, request, trial, with_run
from tests.records import CPU_MACHINE, GPU_MACHINE, failed

FIELDS = ("output_throughput", "ttft_s")


def variant(**changes):
    return with_run(trial(request()), **{"kv_budget": {"mode": "equal_bytes"}, **changes})


def baseline(**changes):
    return variant(variant="fp16", is_baseline=True, **changes)


def pool(blocks: int, size: int | None = 176_000) -> GrantedKv:
    return GrantedKv(block_size=16, num_gpu_blocks=blocks, kv_cache_memory_bytes=size)


def code(record, *peers) -> dict[str, str]:
    return {v.code: v.verdict for v in fairness(record, peers, FIELDS)}


def test_variants_under_equal_conditions_have_nothing_said_against_them():
    assert fairness(variant(granted=pool(22)), [baseline()], FIELDS) == []


def test_every_field_gets_the_verdict():
    found = fairness(variant(engine_version="0.33.0"), [baseline()], FIELDS)
    assert judged(found, "engine_version_differs") == dict.fromkeys(FIELDS, "invalid")
    assert "0.33.0" in found[0].reason


def test_another_attention_backend_is_suspect():
    assert code(variant(attention_backend="FLASHINFER"), baseline()) == {
        "attention_backend_differs": "suspect"
    }


def test_an_unknown_backend_or_version_is_no_difference():
    assert code(variant(attention_backend=None, engine_version=None), baseline()) == {}


@pytest.mark.parametrize("mode", ["equal_bytes", "engine"])
def test_pools_of_other_bytes_are_suspect_whoever_chose_them(mode):
    budget = {"mode": mode}
    mine = variant(granted=pool(22, 352_000), kv_budget=budget)
    assert code(mine, baseline(kv_budget=budget)) == {"kv_pool_differs": "suspect"}


def test_pools_within_one_per_cent_are_the_same():
    assert code(variant(granted=pool(11, 175_000)), baseline()) == {}


def test_equal_bytes_that_cannot_be_confirmed_are_suspect():
    silent = {"granted": pool(22, None), "server_flags": {}}
    assert code(variant(**silent), baseline()) == {"kv_pool_unknown": "suspect"}
    assert code(variant(**silent, kv_budget={"mode": "engine"}), baseline()) == {}


def test_equal_tokens_are_compared_in_tokens_to_the_block():
    budget = {"mode": "equal_tokens"}
    base = baseline(kv_budget=budget)
    # half the bytes are meant here; 11 against 12 blocks is rounding, 13 is not
    assert code(variant(granted=pool(12, 88_000), kv_budget=budget), base) == {}
    assert code(variant(granted=pool(13, 88_000), kv_budget=budget), base) == {
        "kv_pool_differs": "suspect"
    }
    unknown = variant(granted=GrantedKv(), kv_budget=budget)
    assert code(unknown, base) == {"kv_pool_unknown": "suspect"}


def test_trials_of_two_machines_are_no_match():
    assert code(variant(environment=GPU_MACHINE), baseline())["environment_differs"] == "invalid"
    other_cpu = replace(CPU_MACHINE, cpu="Another CPU")
    assert code(variant(environment=other_cpu), baseline()) == {"environment_differs": "invalid"}


def test_launches_of_one_variant_that_were_granted_different_pools_are_suspect():
    again = variant(granted=pool(14), repeat=1)
    assert code(variant(granted=pool(11)), again) == {"grant_varies": "suspect"}
    # one block of two hundred is rounding
    assert code(variant(granted=pool(200)), variant(granted=pool(201))) == {}


def test_a_trial_that_failed_is_no_standard():
    assert code(variant(engine_version="0.33.0"), failed(baseline(), "died")) == {}


def test_the_baseline_is_its_own_standard():
    assert code(baseline(engine_version="0.33.0"), baseline()) == {}
