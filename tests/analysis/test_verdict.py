"""Each reason has a test that plants its cause in a trial that is otherwise beyond reproach."""

from dataclasses import replace
from pathlib import Path

import pytest

from harness.analysis.metrics import summarize
from harness.analysis.results import Verdict
from harness.analysis.verdict import P90_NEEDS, RATES, SPEED, grouped, touches, verdicts, worst
from harness.record import ClientSample, EngineSample, TrialRecord
from harness.scenario import PROFILES, expand, load_scenario
from tests.analysis.build import gpu, judged, request, scrape, trial, with_run
from tests.records import GPU_MACHINE, failed, half_written, skipped


def sound(count: int = 120, **samples) -> TrialRecord:
    """``count`` requests, one a second: TTFT 0.5 s, ITL 0.1 s; enough for every percentile."""
    requests = tuple(
        request(i, sent=float(i), chunks=(i + 0.5, i + 0.6, i + 0.7)) for i in range(count)
    )
    return trial(*requests, end=count + 1.0, **samples)


def told(record: TrialRecord, *peers: TrialRecord) -> tuple[Verdict, ...]:
    return verdicts(record, summarize(record), peers)


def spoil(record: TrialRecord, count: int, **changes) -> TrialRecord:
    """The first ``count`` requests with fields changed."""
    spoilt = tuple(replace(r, **changes) for r in record.requests[:count])
    return replace(record, requests=(*spoilt, *record.requests[count:]))


def test_a_sound_trial_has_nothing_said_against_it():
    assert told(sound()) == ()


def test_a_failed_trial_makes_every_figure_invalid_and_says_why():
    found = told(failed(sound(), "the server died", keep=120))
    assert judged(found, "trial_failed") == {"*": "invalid"}
    assert "the server died" in found[0].reason


def test_a_half_written_trial_is_invalid_and_its_torn_line_is_told():
    found = told(half_written(sound()))
    assert judged(found, "trial_unfinished") == {"*": "invalid"}
    assert judged(found, "damaged_record") == {"*": "suspect"}


def test_a_trial_that_never_ended_is_not_also_blamed_for_requests_it_did_not_send():
    assert judged(told(half_written(sound())), "failed_requests") == {}


def test_a_skipped_trial_has_no_figures_and_so_no_verdicts():
    record = skipped(sound(), "no such dtype here")
    assert verdicts(record, None) == ()
    assert told(record) == ()


def test_a_load_of_which_nothing_completed_is_invalid():
    found = told(spoil(sound(), 120, error="refused"))
    assert judged(found, "nothing_completed") == {"*": "invalid"}


def test_more_than_one_per_cent_of_failed_requests_is_invalid():
    # 2 of 120 are 1.7 %
    found = told(spoil(sound(), 2, error="reset by peer"))
    assert judged(found, "failed_requests") == dict.fromkeys(SPEED, "invalid")
    assert "2 of 120" in found[0].reason
    assert "reset by peer" in found[0].reason


def test_one_failed_request_of_a_hundred_and_twenty_is_borne():
    assert judged(told(spoil(sound(), 1, error="reset")), "failed_requests") == {}


def test_requests_that_were_planned_and_never_recorded_count_as_failed():
    record = sound()
    lost = replace(record, requests=record.requests[:110])
    assert judged(told(lost), "failed_requests") == dict.fromkeys(SPEED, "invalid")


@pytest.mark.parametrize(("extra", "verdict"), [(1, "suspect"), (5, "invalid")])
def test_prompts_of_another_length_than_planned_are_found(extra, verdict):
    # every prompt 101 for 100: 1 % off, not above it; 105: 5 %
    found = told(spoil(sound(), 120, prompt_tokens=100 + extra))
    assert judged(found, "prompt_tokens_mismatch") == dict.fromkeys(
        ("prompt_tokens", *SPEED), verdict
    )
    assert f"+{extra}" in found[0].reason


def test_outputs_of_another_length_than_pinned_are_found():
    found = told(spoil(sound(), 60, output_tokens=2))
    assert judged(found, "output_tokens_mismatch")["output_throughput"] == "invalid"
    assert "ignore_eos" in found[0].reason


def test_token_counts_that_the_server_did_not_report_are_told():
    found = told(spoil(sound(), 3, output_tokens=None))
    assert judged(found, "token_counts_unknown") == {"output_tokens": "suspect"}


def hits(rate: float) -> tuple[EngineSample, ...]:
    return tuple(
        scrape(
            float(t), prefix_cache_queries_total=100.0 * t, prefix_cache_hits_total=100.0 * rate * t
        )
        for t in range(122)
    )


@pytest.mark.parametrize(("rate", "verdict"), [(0.005, "suspect"), (0.40, "invalid")])
def test_a_warm_prefix_cache_is_found(rate, verdict):
    found = told(sound(engine_samples=hits(rate)))
    assert judged(found, "prefix_cache_hits") == dict.fromkeys(SPEED, verdict)


def test_prefix_hits_are_also_read_from_the_usage_of_the_requests():
    found = told(spoil(sound(), 120, cached_prompt_tokens=50))
    assert judged(found, "prefix_cache_hits") == dict.fromkeys(SPEED, "invalid")


def test_prefix_hits_that_the_workload_means_are_no_fault():
    record = sound(engine_samples=hits(0.40))
    shared = with_run(record, workload={**record.run.trial.workload, "shared_prefix_tokens": 64})
    assert judged(told(shared), "prefix_cache_hits") == {}


def test_preemptions_make_speeds_suspect():
    samples = tuple(scrape(float(t), preemptions_total=float(t > 60)) for t in range(122))
    found = told(sound(engine_samples=samples))
    assert judged(found, "preemptions") == dict.fromkeys(SPEED, "suspect")
    assert "1 preemptions" in found[0].reason


def test_a_client_loop_that_always_lags_harms_every_figure_it_is_large_against():
    # 20 ms: above a tenth of the 100 ms gaps, below a tenth of the 500 ms TTFT; over the two
    # tokens after the first it moves TPOT and the mean gap of 100 ms by 10 ms, just borne
    lagging = tuple(ClientSample(float(t), 0.0199, 0.3) for t in range(122))
    found = judged(told(sound(client_samples=lagging)), "client_bound")
    assert found == dict.fromkeys(("itl_s.p50", "itl_s.p90", "itl_s.p99"), "suspect")


def test_a_client_loop_that_lags_now_and_then_harms_the_tail_alone():
    # 3 of 120 readings lag by 200 ms: p99 200 ms, p90 1 ms, mean 6 ms
    rare = tuple(ClientSample(float(t), 0.2 if t % 40 == 1 else 0.001, 0.3) for t in range(121))
    found = judged(told(sound(client_samples=rare)), "client_bound")
    assert set(found) == {"ttft_s.p99", "itl_s.p99", "tpot_s.p99", "e2el_s.p99"}


def test_a_heavily_loaded_loop_makes_ttft_suspect_too():
    heavy = tuple(ClientSample(float(t), 0.150, 0.5) for t in range(122))
    found = judged(told(sound(client_samples=heavy)), "client_bound")
    assert {"ttft_s.p50", "itl_s.p50", "tpot_s.p50", "e2el_s.p50"} <= found.keys()


def test_a_client_without_a_free_core_makes_all_speeds_suspect():
    busy = tuple(ClientSample(float(t), 0.0, 0.97) for t in range(122))
    assert judged(told(sound(client_samples=busy)), "client_bound") == dict.fromkeys(
        SPEED, "suspect"
    )


def late(seconds: float) -> TrialRecord:
    record = sound()
    requests = tuple(replace(r, planned_send_s=r.sent_s - seconds) for r in record.requests)
    return replace(record, requests=requests)


def test_slots_that_stand_idle_between_requests_make_rates_suspect():
    # requests of 0.7 s: 80 ms are 11 %, 10 ms are 1.4 %
    assert judged(told(late(0.080)), "client_bound") == dict.fromkeys(RATES, "suspect")
    assert told(late(0.010)) == ()


def test_arrivals_that_are_late_are_another_load():
    # the limit is a tenth of the TTFT of 0.5 s
    def open_loop(record):
        workload = {**record.run.trial.workload, "concurrency": None, "request_rate": 1.0}
        return with_run(record, workload=workload)

    assert judged(told(open_loop(late(0.080))), "client_bound") == dict.fromkeys(SPEED, "suspect")
    assert told(open_loop(late(0.040))) == ()


def on_gpu(*samples, **changes) -> TrialRecord:
    return with_run(sound(gpu_samples=samples), environment=GPU_MACHINE, **changes)


def test_a_device_in_use_before_the_start_is_not_clean():
    found = told(on_gpu(device_used_before_bytes=2 << 30))
    assert judged(found, "device_not_clean") == {"*": "suspect"}
    assert told(on_gpu(device_used_before_bytes=100 << 20)) == ()


def test_a_process_of_somebody_else_on_the_device_is_told():
    found = told(on_gpu(gpu(0.0, other_processes=1), gpu(9.0, other_processes=1)))
    assert judged(found, "device_not_clean") == {"*": "suspect"}


def test_a_co_tenant_that_comes_or_goes_spoils_the_measurement():
    found = told(on_gpu(gpu(0.0, other_processes=0), gpu(9.0, other_processes=1)))
    assert judged(found, "cotenant_changed") == {"*": "invalid"}


def test_throttling_is_told_with_its_reason():
    hot = tuple(gpu(float(t), throttle_reasons=("sw_thermal_slowdown",)) for t in range(30))
    cool = tuple(gpu(float(t), throttle_reasons=("gpu_idle",)) for t in range(30, 120))
    found = told(on_gpu(*hot, *cool))
    assert judged(found, "throttling") == dict.fromkeys(SPEED, "suspect")
    assert "sw_thermal_slowdown" in found[0].reason
    assert told(on_gpu(*cool)) == ()


def test_a_percentile_of_too_few_values_is_suspect():
    found = judged(told(sound(99)), "too_few_samples")
    # 99 requests, but 198 gaps
    assert found == dict.fromkeys(("ttft_s.p99", "tpot_s.p99", "e2el_s.p99"), "suspect")
    assert judged(told(sound(9)), "too_few_samples")["ttft_s.p90"] == "suspect"


def test_an_expensive_sampler_is_told():
    found = told(with_run(sound(), sampler_cpu_share=0.05))
    assert judged(found, "sampler_cost") == dict.fromkeys(SPEED, "suspect")


def test_gauges_that_went_unread_are_told():
    samples = tuple(scrape(float(t), kv_cache_usage=0.5) for t in (*range(30), *range(40, 122)))
    found = judged(told(sound(engine_samples=samples)), "telemetry_gap")
    assert found["kv_usage_peak"] == "suspect"
    assert "ttft_s" not in found


def test_a_slow_sampler_is_held_against_its_own_interval():
    samples = tuple(scrape(3.0 * t, kv_cache_usage=0.5) for t in range(42))
    assert (
        judged(
            told(with_run(sound(engine_samples=samples), sampler_interval_s=3.0)), "telemetry_gap"
        )
        == {}
    )


@pytest.mark.parametrize(
    ("field", "metric", "speaks"),
    [
        ("*", "ttft_s.p50", True),
        ("ttft_s", "ttft_s.p50", True),
        ("ttft_s.p99", "ttft_s.p99", True),
        ("ttft_s.p99", "ttft_s.p50", False),
        ("ttft", "ttft_s.p50", False),
    ],
)
def test_a_verdict_speaks_of_its_field_and_what_belongs_to_it(field, metric, speaks):
    assert touches(Verdict(field, "suspect", "x", "x"), metric) is speaks


def test_the_gravest_verdict_wins_and_silence_is_valid():
    suspect, invalid = (Verdict("*", kind, "x", "x") for kind in ("suspect", "invalid"))
    assert worst([suspect, invalid, suspect]) == "invalid"
    assert worst([]) == "valid"


def test_verdicts_of_one_cause_are_grouped_with_all_their_fields():
    one, two = Verdict("a", "suspect", "c", "r"), Verdict("b", "suspect", "c", "r")
    other = Verdict("a", "invalid", "d", "r")
    assert grouped([one, two, other]) == ((one, ("a", "b")), (other, ("a",)))


@pytest.mark.parametrize("profile", PROFILES)
def test_the_first_run_of_a_newcomer_has_prompts_enough_for_its_p90(profile) -> None:
    smoke = load_scenario(Path(__file__).parents[2] / "scenarios" / "smoke.yaml", profile)
    assert all(trial.workload.num_prompts >= P90_NEEDS for trial in expand(smoke))
