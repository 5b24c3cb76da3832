"""Whole benches with quality on, against the stand-in: which pass runs when, and what is kept."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from harness import store
from harness.analysis.quality import analyse_quality
from harness.analysis.quality_results import QualityAnalysis, VariantQuality
from harness.errors import InputError
from harness.execute.local import run_scenario
from harness.execute.progress import Silent
from harness.quality.client import EngineClient
from harness.record import PassRecord
from harness.scenario import load_scenario

CONFIG = (
    '{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "num_hidden_layers": 30,'
    ' "num_attention_heads": 9, "num_key_value_heads": 3, "hidden_size": 576, "head_dim": 64,'
    ' "vocab_size": 49152, "torch_dtype": "bfloat16", "max_position_embeddings": 8192}'
)
SCENARIO = """
schema: 1
name: demo
model: {model}
baseline: fp16
server: {{max_model_len: 1024, enable_prefix_caching: false}}
variants:
  fp16: {{kv_cache_dtype: auto}}
  fp8: {{kv_cache_dtype: fp8}}
kv_budget: {{equal_bytes: 117964800}}
workloads:
  - {{context_tokens: 64, output_tokens: 4, num_prompts: 2, concurrency: 2, warmup_requests: 0}}
repeats: 2
quality:
  num_prompts: 10
  context_tokens: 160
  answer_tokens: 24
  needles: {{context_tokens: [128, 256], depths: [0, 0.5, 1]}}
  judge: off
timeouts: {{startup_s: 30, request_s: 10}}
"""

pytestmark = pytest.mark.usefixtures("fake_engine")


@dataclass
class Told(Silent):
    """Keeps what a bench tells, and interrupts it where it is asked to."""

    interrupt_at: str = ""
    warnings: list[str] = field(default_factory=list)
    launches: list[str] = field(default_factory=list)

    def launching(self, group: Any, number: int, launches: int) -> None:
        self.launches.append(f"{group[0].variant}/{group[0].repeat}")

    def warn(self, text: str) -> None:
        self.warnings.append(text)

    def quality(self, what: str, done: int, total: int) -> None:
        if self.interrupt_at and self.interrupt_at in what and done >= 3:
            raise KeyboardInterrupt


def run(tmp_path: Path, *overrides: str, told: Told | None = None, resume: bool = False) -> Path:
    model = tmp_path / "model"
    model.mkdir(parents=True, exist_ok=True)
    (model / "config.json").write_text(CONFIG)
    path = tmp_path / "demo.yaml"
    path.write_text(SCENARIO.format(model=model))
    return run_scenario(
        load_scenario(path, "cpu", overrides=overrides),
        root=tmp_path / "results",
        command=["test"],
        progress=told or Told(),
        resume=resume,
    )


def passes(folder: Path) -> dict[str, PassRecord]:
    return {record.head.pass_id: record for record in store.read_quality(folder).passes}


def analysed(folder: Path) -> QualityAnalysis:
    found = analyse_quality(store.read_quality(folder), "fp16")
    assert found is not None
    return found


def fp8(folder: Path) -> VariantQuality:
    found = analysed(folder).of("fp8")
    assert found is not None
    return found


def test_a_server_that_is_silent_when_asked_costs_two_time_limits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Healthy and quick under load; of 10 questions of 22 none gets a reply.
    monkeypatch.setenv("FAKE_TOY_FP8", "silent=1")
    told = Told()
    folder = run(tmp_path, "repeats=1", "timeouts.request_s=3", told=told)
    found = passes(folder)
    assert {name: record.head.status for name, record in found.items()} == {
        "reference": "sealed",
        "self": "sealed",
        "variant-fp8": "failed",
    }
    silent = found["variant-fp8"]
    assert silent.head.reason == (
        "the server is up but silent: 2 requests in a row got no reply within 3 s"
    )
    assert [answer.error for answer in silent.answers] == [
        "/v1/completions: no reply within 3 s"
    ] * 2
    # Asked one by one with two more tries each, 22 questions would take 66 time limits.
    assert 6 <= (silent.head.wall_s or 0) < 30
    assert any("up but silent" in warning for warning in told.warnings)


def test_baseline_then_variant_then_the_baseline_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_TOY_FP8", "noise=0.4")
    told = Told()
    folder = run(tmp_path, told=told)
    # Interleaved launches: fp16 (0), fp8 (1), fp8 (2), fp16 (3).
    found = passes(folder)
    assert {name: record.head.launches for name, record in found.items()} == {
        "reference": (0,),
        "variant-fp8": (1,),
        "self": (3,),
    }
    assert all(record.head.status == "sealed" for record in found.values())
    assert (found["self"].head.concurrency, found["self"].head.reverse) == (4, True)
    assert (found["variant-fp8"].head.concurrency, found["variant-fp8"].head.reverse) == (1, False)
    # 10 tasks, and 2 contexts × 3 depths × 2 kinds of needle; scores are for the tasks alone.
    assert all(len(record.answers) == 22 for record in found.values())
    assert all(len(record.scores) == 10 for record in found.values())
    assert told.warnings == []
    assert told.launches == ["fp16/0", "fp8/0", "fp8/1", "fp16/1"]
    noisy, floor = fp8(folder), analysed(folder).floor
    assert noisy.standing == "differs", noisy.gate
    assert noisy.free is not None
    assert noisy.free.exact_match.value < 1
    assert floor is not None
    assert floor.free is not None
    assert floor.free.exact_matches == 10


@pytest.mark.parametrize("fault", ["weights=1", "scramble=1"])
def test_a_planted_fault_is_caught_by_agreement_needles_and_gate_alike(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    monkeypatch.setenv("FAKE_TOY_FP8", fault)
    folder = run(tmp_path, "repeats=1")
    broken, base = fp8(folder), analysed(folder).baseline_retrieval
    assert broken.kl_excess is not None
    assert broken.kl_excess.low is not None
    assert broken.kl_excess.low > 1.0
    assert base is not None
    assert (base.needles_right, base.needles_asked) == (12, 12)
    assert broken.retrieval is not None
    assert broken.retrieval.needles_right == 0
    assert broken.standing == "broken"
    assert broken.gate is not None
    assert any("perplexity" in why for why in broken.gate.reasons)
    assert any("needles" in why for why in broken.gate.reasons)


def test_a_prompt_shuffled_on_its_way_is_caught_by_all_three_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_TOY_FP8", "shuffle=1")
    told = Told()
    broken = fp8(run(tmp_path, "repeats=1", told=told))
    # Agreement: no answer is the baseline's, and what is scored is not what was sent.
    assert broken.free is not None
    assert broken.free.exact_matches == 0
    assert broken.retrieval is not None
    assert (broken.retrieval.needles_right, broken.retrieval.needles_asked) == (0, 12)
    assert broken.standing == "broken"
    assert broken.gate is not None
    assert broken.gate.reasons[0] == "it read other tokens than it was sent in 10 of 10 prompts"
    assert "other tokens" in told.warnings[0]


def test_with_one_repeat_the_baseline_answers_twice_at_the_same_launch(tmp_path: Path) -> None:
    folder = run(tmp_path, "repeats=1", "quality.needles=null", "quality.num_prompts=5")
    found = passes(folder)
    assert {name: record.head.launches for name, record in found.items()} == {
        "reference": (0,),
        "self": (0,),
        "variant-fp8": (1,),
    }


def test_a_reshaped_model_of_random_weights_is_never_asked(tmp_path: Path) -> None:
    reshaped = "variants.fp8.hf_overrides={num_key_value_heads: 1}"
    folder = run(tmp_path, reshaped, "variants.fp8.load_format=dummy", "quality.needles=null")
    assert set(passes(folder)) == {"reference", "self"}


def test_random_weights_in_the_checkpoints_own_shape_are_a_fault_to_be_found(
    tmp_path: Path,
) -> None:
    small = ("repeats=1", "quality.needles=null", "quality.num_prompts=5")
    folder = run(tmp_path, "variants.fp8.load_format=dummy", *small)
    assert "variant-fp8" in passes(folder)


def test_a_baseline_that_is_started_last_is_still_answered_first(tmp_path: Path) -> None:
    folder = run(tmp_path, "baseline=fp8", "quality.needles=null", "quality.num_prompts=5")
    # fp16 (0) comes before the reference stands at fp8 (1), fp8 (2) answers again, fp16 (3).
    assert {name: record.head.launches for name, record in passes(folder).items()} == {
        "reference": (1,),
        "self": (2,),
        "variant-fp16": (3,),
    }


@pytest.mark.parametrize(
    ("moment", "launches"),
    [
        ("reference: answers", ["fp16/0", "fp8/0", "fp8/1", "fp16/1"]),
        ("variant-fp8: scores", ["fp8/0", "fp8/1", "fp16/1"]),
        ("self: answers", ["fp16/1"]),
    ],
)
def test_an_interrupted_pass_is_resumed_where_it_stopped(
    tmp_path: Path, moment: str, launches: list[str]
) -> None:
    small = ("quality.needles=null", "quality.num_prompts=5")
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, *small, told=Told(interrupt_at=moment))
    told = Told()
    folder = run(tmp_path, *small, told=told, resume=True)
    assert told.warnings == []
    assert told.launches == launches
    found = passes(folder)
    assert {record.head.status for record in found.values()} == {"sealed"}
    for record in found.values():
        assert sorted(answer.index for answer in record.answers) == [0, 1, 2, 3, 4]
        assert sorted(score.index for score in record.scores) == [0, 1, 2, 3, 4]
    assert (
        store.find_unfinished(tmp_path / "results", "demo", store.read_manifest(folder).trial_ids)
        is None
    )


def test_a_server_that_cannot_tokenize_fails_the_pass_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_TOY", "fail_path=/tokenize")
    told = Told()
    folder = run(tmp_path, "repeats=1", told=told)
    record, trials = store.read_bench(folder)
    assert record.status == "finished"
    assert all(trial.run.status == "sealed" for trial in trials)
    (head,) = [record.head for record in passes(folder).values()]
    assert head.status == "failed"
    assert "/tokenize" in (head.reason or "")
    assert "/tokenize" in told.warnings[0]


def test_the_users_own_prompts_are_asked_and_bad_lines_named(tmp_path: Path) -> None:
    own = tmp_path / "own.jsonl"
    own.write_text(
        '{"prompt": "Where is the sea?", "answer": "here"}\nbad\n'
        '{"prompt": "' + "long " * 1100 + '"}\n'
    )
    folder = run(tmp_path, "repeats=1", f"quality.prompts={own}", "quality.needles=null")
    records = store.read_quality(folder)
    (prompt,) = records.prompts
    assert (prompt.task, prompt.expected) == ("user", ("here",))
    left_out = analysed(folder).left_out
    assert [line.split(":")[0] for line in left_out] == ["own.jsonl, line 2", "own.jsonl, line 3"]
    assert "1024 fit" in left_out[1]


def test_a_missing_file_stops_the_run_before_any_server_starts(tmp_path: Path) -> None:
    told = Told()
    with pytest.raises(InputError, match="no-such"):
        run(tmp_path, "quality.prompts=no-such.jsonl", told=told)
    assert told.launches == []
    assert not (tmp_path / "results").exists()


def test_a_conversation_that_the_model_refuses_is_named_and_spoils_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_TOY", "no_system=1")
    own = tmp_path / "own.jsonl"
    own.write_text(
        '{"messages": [{"role": "system", "content": "Be brief."},'
        ' {"role": "user", "content": "Why?"}]}\n{"prompt": "Where is the sea?"}\n'
    )
    told = Told()
    folder = run(tmp_path, "repeats=1", f"quality.prompts={own}", "quality.needles=null", told=told)
    assert [prompt.source for prompt in store.read_quality(folder).prompts] == ["line 2"]
    (left_out,) = analysed(folder).left_out
    assert left_out == "own.jsonl, line 1: /tokenize: Error code: 400 - System role not supported"
    assert told.warnings == []


def test_the_users_own_text_is_what_prompts_and_needles_stand_in(tmp_path: Path) -> None:
    text = tmp_path / "own.txt"
    text.write_text(" ".join(f"Otters of river {n} swim by night." for n in range(400)))
    small = ("repeats=1", "quality.num_prompts=5", f"quality.haystack={text}")
    folder = run(tmp_path, *small)
    records = store.read_quality(folder)
    assert len(records.prompts) == 5 + 12
    for prompt in records.prompts:
        assert prompt.passage.count("swim by night") >= 4
        assert len(prompt.prompt_token_ids) == prompt.context_tokens
    # 400 sentences make 50 passages, and no two prompts begin alike.
    assert len({prompt.passage[:25] for prompt in records.prompts[:5]}) == 5


def test_an_empty_haystack_stops_the_run_before_any_server_starts(tmp_path: Path) -> None:
    (tmp_path / "own.txt").write_text(" \n\n")
    told = Told()
    with pytest.raises(InputError, match="holds no text"):
        run(tmp_path, f"quality.haystack={tmp_path / 'own.txt'}", told=told)
    assert told.launches == []


def test_at_the_cuda_profiles_size_every_question_is_asked_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_TOY", "judge=tie")
    monkeypatch.setenv("FAKE_TOY_FP8", "noise=0.4")
    asked: Counter[str] = Counter()
    post = EngineClient._post

    def counted(client: EngineClient, path: str, body: Any) -> dict[str, Any]:
        kind = "score" if body.get("prompt_logprobs") else path
        asked[kind] += 1
        return post(client, path, body)

    monkeypatch.setattr(EngineClient, "_post", counted)
    shipped = Path(__file__).resolve().parents[2] / "scenarios" / "fp8_vs_fp16.yaml"
    cuda = load_scenario(shipped, "cuda").quality
    assert cuda is not None
    assert cuda.needles is not None
    depths = list(cuda.needles.depths)
    # As many as there, and shorter: the counts do not depend on the length.
    folder = run(
        tmp_path,
        f"quality.num_prompts={cuda.num_prompts}",
        f"quality.needles={{context_tokens: [96, 128, 160], depths: {depths}}}",
        "quality.judge=self",
    )
    # 50 prompts and 3 × 5 × 2 needles, answered in three passes; scored are the prompts alone.
    assert asked["/v1/completions"] == 3 * 80
    assert asked["score"] == 3 * 50
    # At most 50 real pairs and 12 controls of each of three kinds, in both orders.
    (judge,) = store.read_quality(folder).judges
    assert len({(j.pair_id, j.order) for j in judge.judgements}) == len(judge.judgements) <= 172
    # Per prompt: the frame twice, the text's pieces and facts, and the text once back.
    assert asked["/tokenize"] <= 80 * 12
    assert asked["/detokenize"] == 80
