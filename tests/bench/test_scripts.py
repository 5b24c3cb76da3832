from __future__ import annotations

from statistics import median
from typing import Any

import pytest

from tests.bench.client import limits
from tests.bench.crosscheck import judge
from tests.bench.ours import measure_apart
from tests.load.playing import punctual


def test_figures_agree_if_the_means_lie_within_the_larger_spread():
    # Means 10 and 11.5 differ by 1.5; the spreads are 2 and 1.
    verdict = judge([9.0, 10.0, 11.0], [11.0, 11.5, 12.0])
    assert (verdict["difference"], verdict["spread"], verdict["agree"]) == (1.5, 2.0, True)
    # Means 10 and 13 differ by 3, more than either spread.
    assert judge([9.0, 10.0, 11.0], [12.5, 13.0, 13.5])["agree"] is False


def figures(ratio: float = 1.3, **ours: float) -> dict[str, object]:
    exact = {"ttft_p50": 201.0, "ttft_p99": 205.0, "itl_p50": 20.1, "itl_p99": 22.0}
    theirs = {"ttft_p50": 210.0, "ttft_p99": 240.0, "itl_p50": 20.0, "itl_p99": 24.0}
    return {"ceiling": {"ratio": ratio}, "accuracy": {"ours": {**exact, **ours}, "vllm": theirs}}


@pytest.mark.parametrize(
    ("change", "missed"),
    [
        ({}, None),
        ({"ratio": 1.19}, "ceiling"),
        ({"ttft_p50": 205.1}, "ttft_p50"),  # 5.1 ms off; half of theirs is 5.0 ms
        ({"ttft_p99": 220.1}, "ttft_p99"),  # 20.1 ms off; half of theirs is 20.0 ms
        ({"itl_p50": 20.6}, "itl_p50"),
        ({"itl_p99": 23.1}, "itl_p99"),
    ],
)
def test_each_limit_is_missed_by_what_lies_beyond_it(change, missed):
    broken = [sentence for sentence, fine in limits(figures(**change)) if not fine]
    assert [sentence.split(" ")[0].rstrip(":") for sentence in broken] == (
        [missed] if missed else []
    )


def test_our_client_is_measured_in_a_process_of_its_own(standin):
    load = {"prompts": 6, "concurrency": 3, "input_tokens": 16, "output_tokens": 5}

    def measured() -> dict[str, Any]:
        found = measure_apart(url=standin.url(ttft_s=0.05, itl_s=0.02), model="standin", **load)
        assert [len(gaps) for gaps in found["itls"]] == [4] * 6
        # Due after 50 ms, then every 20 ms; never early by more than the stamp's own grain.
        assert all(value >= 0.049 for value in found["ttfts"])
        times = zip(found["ttfts"], found["tpots"], strict=True)
        assert all(ttft + 4 * tpot >= 0.129 for ttft, tpot in times)
        # 6 requests of 5 tokens in 2 rounds of 50 + 4 · 20 = 130 ms: at most 30 / 0.26 s.
        assert found["output_throughput"] <= 30 / 0.26
        return found

    def in_time(found: dict[str, Any]) -> bool:
        ttft, tpot = median(found["ttfts"]), median(found["tpots"])
        return ttft < 0.25 and tpot < 0.1 and found["output_throughput"] > 20

    assert in_time(punctual(measured, in_time))
