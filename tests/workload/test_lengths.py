from __future__ import annotations

import math
from statistics import median

from harness.scenario import Workload
from harness.workload.lengths import request_lengths, turn_length


def workload(**more: object) -> Workload:
    sizes = {"context_tokens": 1000, "output_tokens": 100, "num_prompts": 6, "concurrency": 1}
    return Workload.model_validate({**sizes, **more})


def test_without_a_mix_all_requests_are_alike() -> None:
    assert request_lengths(workload(), 3, seed=1) == ((1000, 100),) * 3


def test_a_mix_has_the_median_and_the_tail_of_its_log_normal() -> None:
    mix = {"context_median": 100, "output_median": 20, "sigma": 1.0}
    lengths = request_lengths(workload(context_tokens=100_000, length_mix=mix), 4000, seed=1)
    prompts = [prompt for prompt, _ in lengths]
    # Of 4,000 draws the median is off by about 1.25 / sqrt(4000) = 2 % of sigma.
    assert 93 < median(prompts) < 107
    # One standard deviation above: exp(1) = 2.718 medians; a normal has 15.9 % beyond it.
    beyond = sum(prompt > 100 * math.e for prompt in prompts) / len(prompts)
    assert 0.14 < beyond < 0.18
    assert 18 < median(output for _, output in lengths) < 22


def test_no_length_leaves_the_workloads_own_bounds() -> None:
    mix = {"context_median": 900, "output_median": 2, "sigma": 3.0}
    lengths = request_lengths(workload(length_mix=mix), 500, seed=2)
    assert {prompt for prompt, _ in lengths} >= {1000}
    assert all(1 <= prompt <= 1000 and 1 <= output <= 100 for prompt, output in lengths)
    assert 1 in {output for _, output in lengths}


def test_outputs_stay_pinned_where_only_prompts_are_mixed() -> None:
    lengths = request_lengths(workload(length_mix={"context_median": 50}), 100, seed=3)
    assert {output for _, output in lengths} == {100}
    assert len({prompt for prompt, _ in lengths}) > 10


def test_the_same_seed_gives_the_same_lengths_and_another_others() -> None:
    load = workload(length_mix={"context_median": 50})
    assert request_lengths(load, 20, seed=4) == request_lengths(load, 20, seed=4)
    assert request_lengths(load, 20, seed=4) != request_lengths(load, 20, seed=5)


def test_turns_are_equal_parts_of_the_longest_prompt() -> None:
    load = workload(turns=3)
    # 1000 × 1/3, 2/3, 3/3, rounded down
    assert [turn_length(load, turn) for turn in range(3)] == [333, 666, 1000]
