"""From a real load to its verdicts: what a busy client does to its own figures is told."""

from __future__ import annotations

import dataclasses
import time

from harness.analysis.metrics import summarize
from harness.analysis.verdict import verdicts
from harness.record import RequestRecord, TrialRecord
from tests import records
from tests.load.playing import Played, planned, play_against


def as_trial(played: Played, concurrency: int) -> TrialRecord:
    """The record of a trial in which this load was played."""
    made_up = records.trial()
    facts = made_up.run.trial
    workload = {**facts.workload, "concurrency": concurrency, "num_prompts": len(played.records)}
    run = dataclasses.replace(
        made_up.run,
        trial=dataclasses.replace(facts, workload=workload),
        load_start_s=played.outcome.load_start_s,
        load_end_s=played.outcome.load_end_s,
    )
    return TrialRecord(run, tuple(played.records), client_samples=tuple(played.samples))


def test_with_the_loop_deliberately_loaded_the_latencies_are_suspect(standin):
    def hog(_progress: object) -> None:
        time.sleep(0.15)

    url = standin.url(ttft_s=0.1, itl_s=0.02)
    played = play_against(url, planned(24, output_tokens=20), concurrency=8, on_progress=hog)
    trial = as_trial(played, concurrency=8)
    found = {v.field: v for v in verdicts(trial, summarize(trial)) if v.code == "client_bound"}
    # The loop is held up for 150 ms five times a second: more than the TTFT of 100 ms itself.
    assert found["ttft_s.p50"].verdict == "suspect"
    assert "event loop lagged" in found["ttft_s.p50"].reason
    assert found["itl_s.p90"].verdict == "suspect"


def test_a_client_that_never_catches_up_makes_the_rates_suspect(standin):
    played = Played()

    def keep_slowly(record: RequestRecord) -> None:
        time.sleep(0.05)
        played.records.append(record)

    plan = planned(40, output_tokens=2)
    play_against(standin.url(), plan, into=played, on_record=keep_slowly)
    trial = as_trial(played, concurrency=2)
    found = {v.field: v for v in verdicts(trial, summarize(trial)) if v.code == "client_bound"}
    assert found["output_throughput"].verdict == "suspect"
