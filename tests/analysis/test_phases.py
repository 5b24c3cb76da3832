from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import pytest

from harness.analysis.metrics import summarize
from harness.analysis.phases import MIN_READINGS, Phases, phases, phases_of_variant
from harness.analysis.results import TrialAnalysis, Verdict
from harness.record import EngineSample, RequestRecord, TrialRecord
from tests import records

BASE = records.trial(workload={**records.EXERCISE, "num_prompts": 2, "warmup_requests": 0})


def request(index: int, sent_s: float, first_s: float, last_s: float) -> RequestRecord:
    return replace(
        BASE.requests[0],
        index=index,
        planned_send_s=sent_s,
        sent_s=sent_s,
        first_chunk_s=first_s,
        last_chunk_s=last_s,
        finished_s=last_s,
        chunk_times_s=(first_s, last_s),
        output_tokens=2,
    )


def queue(until_s: float, *, step_s: float = 0.25, preempted: float = 0.0) -> list[EngineSample]:
    """One request waits until that moment, then none; scraped over eight seconds."""
    moments = [step_s * number for number in range(int(8 / step_s) + 1)]
    return [
        EngineSample(
            t_s=t_s,
            kv_cache_usage=0.5,
            requests_running=1.0,
            requests_waiting=1.0 if t_s < until_s else 0.0,
            preemptions_total=preempted if t_s > 4 else 0.0,
        )
        for t_s in moments
    ]


def trial(samples: list[EngineSample], requests: tuple[RequestRecord, ...] = ()) -> TrialRecord:
    # Two requests sent at 0: one answers at once (1 s, done at 4 s), one waits for it first.
    made = requests or (request(0, 0.0, 1.0, 4.0), request(1, 0.0, 5.0, 8.0))
    run = replace(BASE.run, load_start_s=0.0, load_end_s=8.0)
    return replace(BASE, run=run, requests=made, engine_samples=tuple(samples))


def split(record: TrialRecord) -> Phases | None:
    return phases(record, summarize(record))


def test_means_split_at_the_first_token_and_the_queue_is_shared_out() -> None:
    found = split(trial(queue(until_s=4.0)))
    assert found is not None
    # Mean TTFT (1 + 5) / 2 = 3 s; mean E2EL (4 + 8) / 2 = 6 s, so 3 s after the first token.
    assert found.before_first_s == pytest.approx(3.0)
    assert found.after_first_s == pytest.approx(3.0)
    # One request waits from 0 to the scrape at 3.75 s and falls to none at 4 s, by a straight
    # line: 3.75 + 0.125 = 3.875 request-seconds, shared out among two requests.
    assert found.queued_s == pytest.approx(3.875 / 2)


def test_the_wait_is_never_longer_than_the_time_to_the_first_token() -> None:
    found = split(trial(queue(until_s=9.0), (request(0, 0.0, 1.0, 4.0), request(1, 0.0, 2.0, 8.0))))
    assert found is not None
    # The gauge says 8 request-seconds, 4 per request; the mean TTFT is 1.5 s.
    assert found.queued_s == pytest.approx(1.5)


@pytest.mark.parametrize(
    "samples",
    [
        queue(until_s=4.0, preempted=1.0),
        queue(until_s=4.0, step_s=8 / (MIN_READINGS - 2)),
        [replace(sample, requests_waiting=None) for sample in queue(until_s=4.0)],
        [replace(sample, preemptions_total=None) for sample in queue(until_s=4.0)],
        [],
    ],
    ids=["preempted", "read too seldom", "no gauge", "no counter", "no samples"],
)
def test_where_the_wait_can_not_be_told_it_is_unknown_and_never_zero(
    samples: list[EngineSample],
) -> None:
    found = split(trial(samples))
    assert found is not None
    assert found.queued_s is None


def test_a_request_that_failed_leaves_the_wait_unknown() -> None:
    done, lost = request(0, 0.0, 1.0, 4.0), request(1, 0.0, 5.0, 8.0)
    found = split(trial(queue(4.0), (done, replace(lost, error="reset", finished_s=None))))
    assert found is not None
    assert found.queued_s is None


def test_without_a_first_token_there_is_nothing_to_split() -> None:
    silent = replace(
        request(0, 0.0, 1.0, 4.0), first_chunk_s=None, last_chunk_s=None, chunk_times_s=()
    )
    assert split(trial(queue(4.0), (silent,))) is None


def of_variant(*records: TrialRecord, verdicts: tuple[Verdict, ...] = ()) -> Phases | None:
    """The mean of trials named 0, 1, …; the last one carries the verdicts."""
    last = len(records) - 1
    trials = [
        cast(
            "TrialAnalysis",
            SimpleNamespace(
                trial_id=str(n),
                status="sealed",
                summary=summarize(record),
                verdicts=verdicts if n == last else (),
            ),
        )
        for n, record in enumerate(records)
    ]
    return phases_of_variant(trials, {str(n): record for n, record in enumerate(records)})


QUICK = (request(0, 0.0, 1.0, 4.0), request(1, 0.0, 2.0, 8.0))


def test_a_variants_parts_are_the_means_of_its_repeats_and_add_up() -> None:
    found = of_variant(trial(queue(4.0)), trial(queue(4.0), QUICK))
    assert found is not None
    # Mean TTFT 3 s and 1.5 s, mean E2EL 6 s in both: 2.25 s and (3 + 4.5) / 2 s.
    assert (found.before_first_s, found.after_first_s) == pytest.approx((2.25, 3.75))
    # 3.875 / 2 of the first, and no more than the second's 1.5 s.
    assert found.queued_s == pytest.approx((1.9375 + 1.5) / 2)


def test_one_repeat_that_can_not_tell_its_wait_leaves_the_variants_unknown() -> None:
    found = of_variant(trial(queue(4.0)), trial([]))
    assert found is not None
    assert found.queued_s is None


@pytest.mark.parametrize(("field", "before_s"), [("ttft_s.p99", 3.0), ("output_throughput", 2.25)])
def test_a_repeat_with_invalid_latencies_is_left_out(field: str, before_s: float) -> None:
    bad = (Verdict(field, "invalid", "client_lag", "the client was late"),)
    found = of_variant(trial(queue(4.0)), trial(queue(4.0), QUICK), verdicts=bad)
    assert found is not None
    assert found.before_first_s == pytest.approx(before_s)


def test_a_variant_without_a_finished_trial_has_no_parts() -> None:
    assert phases_of_variant([], {}) is None
