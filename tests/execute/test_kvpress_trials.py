"""Policies of kvpress as trials: what is read, what is written, and what is said without them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from harness import store
from harness.analysis.compare import analyse
from harness.analysis.eviction import policy_results
from harness.engines.kvpress import KvpressEngine
from harness.execute.estimate import estimate
from harness.execute.facts import trial_facts
from harness.execute.kvpress_trials import run_policy_trial, texts
from harness.execute.local import run_scenario
from harness.execute.outline import outline
from harness.execute.progress import Silent
from harness.machine import describe
from harness.record import (
    SCHEMA_VERSION,
    QualityAnswer,
    QualityPass,
    QualityPrompt,
    QualityScore,
    Run,
)
from harness.scenario import Scenario, expand, load_scenario
from tests.engines import tiny_llama
from tests.quality.test_bench import CONFIG
from tests.records import bench

FAKE = Path(__file__).resolve().parents[1] / "fake_kvpress"
TEXT = """\
schema: 1
name: demo
model: {model}
baseline: full
server: {{max_model_len: 1024, enable_prefix_caching: false}}
variants:
  full: {{}}
  bare: {{kvpress: {{press: none}}}}
  half: {{kvpress: {{press: streaming_llm, compression_ratio: 0.5}}}}
kv_budget: {{equal_bytes: 117964800}}
workloads:
  - {{context_tokens: 64, output_tokens: 4, num_prompts: 2, concurrency: 2, warmup_requests: 0}}
repeats: 1
quality: {{num_prompts: 2, context_tokens: 64, answer_tokens: 8, judge: off}}
timeouts: {{startup_s: 60, request_s: 30}}
profiles: {{cpu: {{}}}}
"""


def scenario(tmp_path: Path, model: Path, *overrides: str) -> Scenario:
    path = tmp_path / "demo.yaml"
    path.write_text(TEXT.format(model=model))
    return load_scenario(path, "cpu", overrides=overrides)


def ids(seed: int, count: int) -> tuple[int, ...]:
    return tuple((seed + 11 * place) % 127 + 1 for place in range(count))


def answered(folder: Path) -> None:
    """Two prompts of 64 tokens, answered and scored by a baseline: places 40 to 65."""
    prompts = [
        QualityPrompt(index, "answer", "here", ids(index, 64), "?", "") for index in range(2)
    ]
    store.write_prompts(folder, prompts)
    store.write_pass(
        folder,
        QualityPass(SCHEMA_VERSION, "reference", "reference", "full", "sealed", (0,), 1, False),
    )
    for index in range(2):
        store.answers_file(folder, "reference").append(
            QualityAnswer(index, "x", ids(index + 5, 2), "length")
        )
        places = (40, 48, 49, 63, 64, 65)
        store.scores_file(folder, "reference").append(
            QualityScore(
                index,
                64,
                places,
                (-1.0,) * 6,
                (1,) * 6,
                ((5,),) * 6,
                ((-1.0,),) * 6,
            )
        )


@pytest.fixture
def engine(kvpress_child: KvpressEngine) -> KvpressEngine:
    return kvpress_child


def pressed(folder: Path, engine: KvpressEngine) -> list[Run]:
    wanted = scenario(folder, Path(engine.spec.model))
    return [
        run_policy_trial(
            folder,
            trial_facts(trial, wanted, None, {}),
            describe("cpu"),
            engine,
            timeout_s=60,
            progress=Silent(),
        )
        for trial in expand(wanted)
        if trial.engine == "kvpress"
    ]


def test_only_places_behind_the_prefill_are_asked_for(tmp_path: Path) -> None:
    """64 tokens: 48 are prefilled. Place 48 is foretold by the prefill itself: 49 is the first."""
    answered(tmp_path)
    first, second = texts(store.read_quality(tmp_path))
    assert (first.prefill, first.positions) == (48, (49, 63, 64, 65))
    assert first.tokens == (*ids(0, 64), *ids(5, 2))
    assert second.index == 1


def test_a_policy_leaves_a_sealed_trial_and_a_pass_of_its_own(
    tmp_path: Path, engine: KvpressEngine
) -> None:
    """48 tokens are prefilled; half of them, 512 bytes each, stay."""
    answered(tmp_path)
    runs = pressed(tmp_path, engine)
    assert [run.status for run in runs] == ["sealed", "sealed"]
    bare, half = (store.read_trial(tmp_path / run.trial.trial_id) for run in runs)
    assert [s.sequence_tokens for s in bare.cache_samples] == [48, 48]
    assert [s.allocated_bytes for s in half.cache_samples] == [24 * 512, 24 * 512]
    assert half.run.trial.engine == "kvpress"
    assert half.run.server is not None
    assert (half.run.server.engine_version or "").startswith("kvpress 0.0.1 on transformers ")
    passes = {p.head.pass_id: p for p in store.read_quality(tmp_path).passes}
    assert passes["variant-half"].head.kind == "kvpress"
    assert [score.positions for score in passes["variant-half"].scores] == [(49, 63, 64, 65)] * 2
    assert passes["variant-half"].answers == ()
    assert passes["variant-half"].scores[0].logprobs != passes["variant-bare"].scores[0].logprobs


def test_a_trial_in_which_nothing_is_sampled_says_nothing_of_a_sampler(
    tmp_path: Path, engine: KvpressEngine
) -> None:
    answered(tmp_path)
    run = pressed(tmp_path, engine)[0]
    assert (run.sampler_cpu_share, run.sampler_interval_s, run.sampler_problems) == (None, None, ())
    assert run.load_start_s == 0.0
    assert run.load_end_s is not None
    assert run.zero_unix_s is not None
    assert (tmp_path / run.trial.trial_id / "server.log").exists()


def test_an_interrupt_seals_the_policy_as_failed_and_goes_on_up(
    tmp_path: Path, engine: KvpressEngine
) -> None:
    class Interrupts(Silent):
        def quality(self, what: str, done: int, total: int) -> None:
            raise KeyboardInterrupt

    answered(tmp_path)
    wanted = scenario(tmp_path, Path(engine.spec.model))
    trial = next(trial for trial in expand(wanted) if trial.variant == "half")
    facts = trial_facts(trial, wanted, None, {})
    with pytest.raises(KeyboardInterrupt):
        run_policy_trial(
            tmp_path, facts, describe("cpu"), engine, timeout_s=60, progress=Interrupts()
        )
    found = store.read_trial(tmp_path / trial.trial_id)
    assert (found.run.status, found.run.reason) == ("failed", "interrupted by the user")
    assert len(found.cache_samples) == 1


def test_what_was_measured_is_read_as_bytes_and_perplexity_beside_theory(
    tmp_path: Path, engine: KvpressEngine
) -> None:
    answered(tmp_path)
    runs = pressed(tmp_path, engine)
    records = [store.read_trial(tmp_path / run.trial.trial_id) for run in runs]
    quality = analyse(bench(repeats=1)[0], records, store.read_quality(tmp_path)).quality
    bare, half = policy_results(records, quality)
    assert (bare.kept_tokens, bare.predicted_tokens, bare.perplexity_ratio) == (48, 48, 1.0)
    assert (half.kept_tokens, half.predicted_tokens, half.ratio) == (24, 24, 0.5)
    assert half.perplexity is not None
    assert bare.perplexity is not None
    assert half.perplexity_ratio == half.perplexity / bare.perplexity


def test_without_answers_of_the_baseline_the_trial_fails_with_the_reason(
    tmp_path: Path, engine: KvpressEngine
) -> None:
    runs = pressed(tmp_path, engine)
    assert {run.status for run in runs} == {"failed"}
    assert "the baseline has not answered" in (runs[0].reason or "")


def served(tmp_path: Path) -> Path:
    model = tmp_path / "model"
    model.mkdir(exist_ok=True)
    (model / "config.json").write_text(CONFIG)
    return model


@pytest.mark.usefixtures("fake_engine")
def test_without_its_environment_the_rest_is_measured_and_the_command_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KVBENCH_KVPRESS_PYTHON", str(tmp_path / "nowhere"))
    wanted = scenario(tmp_path, served(tmp_path))
    folder = run_scenario(
        wanted, root=tmp_path / "results", command=("kvbench",), progress=Silent()
    )
    record, trials = store.read_bench(folder)
    statuses = {trial.run.trial.variant: trial.run.status for trial in trials}
    assert statuses == {"full": "sealed", "bare": "skipped", "half": "skipped"}
    assert record.status == "finished"
    assert all("make kvpress" in reason for reason in record.skipped.values())
    analysis = analyse(record, trials, store.read_quality(folder))
    assert [kv.variant for kv in analysis.kv] == ["full"]
    assert all(c.variants == ("full",) for c in analysis.comparisons)
    assert analysis.headline.trials_skipped == 2
    assert sum(caution.code == "variant_skipped" for caution in analysis.cautions) == 1


@pytest.mark.usefixtures("fake_engine")
def test_policies_that_can_not_read_the_tokens_fail_and_the_server_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stand-in server has tokens of its own, which the tiny model knows nothing of."""
    monkeypatch.setenv("KVBENCH_KVPRESS_PYTHON", sys.executable)
    monkeypatch.setenv("PYTHONPATH", str(FAKE))
    model = tiny_llama.write(served(tmp_path))
    folder = run_scenario(
        scenario(tmp_path, model, "quality.context_tokens=160"),
        root=tmp_path / "results",
        command=("kvbench",),
        progress=Silent(),
    )
    _, trials = store.read_bench(folder)
    runs = {trial.run.trial.variant: trial.run for trial in trials}
    assert runs["full"].status == "sealed"
    assert runs["half"].status == "failed"
    assert "every prompt failed" in (runs["half"].reason or "")


def test_a_plan_shows_the_childs_command_or_why_it_will_be_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = scenario(tmp_path, served(tmp_path))
    monkeypatch.setenv("KVBENCH_KVPRESS_PYTHON", str(tmp_path / "nowhere"))
    missing = next(item for item in outline(wanted) if item.trial.variant == "half")
    assert "will be skipped" in (missing.capacity_reason or "")
    without = estimate(wanted, tmp_path)
    monkeypatch.setenv("KVBENCH_KVPRESS_PYTHON", sys.executable)
    found = next(item for item in outline(wanted) if item.trial.variant == "half")
    assert found.command[-1] == "--serve"
    assert found.capacity_reason == "transformers keeps no pool of blocks"
    assert estimate(wanted, tmp_path).total_s > without.total_s


def test_without_quality_there_is_nothing_to_score(tmp_path: Path) -> None:
    wanted = scenario(tmp_path, served(tmp_path), "quality=off")
    half = next(item for item in outline(wanted) if item.trial.variant == "half")
    assert "questions of `quality`" in (half.capacity_reason or "")
