"""Policies of kvpress as trials: the run's own quality prompts, scored behind compressed prefills.

Method: once the baseline has answered, the first three quarters of each of its prompts are
prefilled under a policy, and what is left of the keys and values is weighed. The places of the
last quarter, and of the baseline's answer, that the servers scored are scored behind it: the same
tokens at the same positions. Bytes become ``CacheSample``s of a trial, probabilities a quality
pass of kind ``kvpress``. Every policy is played by one child, which loads the model once.

Not covered: speed and answers of its own. It keeps off every axis of the servers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from harness.clock import Clock
from harness.engines import kvpress
from harness.engines.kvpress import KvpressEngine, ScoreReply, ScoreRequest
from harness.errors import ServerDied, every_one_failed
from harness.execute.progress import Progress
from harness.execute.quality import REFERENCE, pass_id
from harness.plausible import is_sound_score
from harness.record import (
    SCHEMA_VERSION,
    CacheSample,
    Environment,
    PassRecord,
    PassStatus,
    QualityPass,
    QualityRecords,
    QualityScore,
    RequestRecord,
    Run,
    ServerFacts,
    TrialFacts,
)
from harness.run import LoadOutcome, begin, record_trial
from harness.scenario import Scenario, tail_start
from harness.shell import relative_to_here, with_tilde
from harness.store import TrialFolder, read_quality, scores_file, write_pass
from harness.telemetry.process import tree_rss_bytes
from harness.units import Seconds, Tokens


@dataclass(frozen=True, slots=True)
class ScoredText:
    """A prompt with the baseline's answer, and the places behind its prefill that are scored."""

    index: int
    tokens: tuple[int, ...]
    prompt_tokens: Tokens
    positions: tuple[int, ...]

    @property
    def prefill(self) -> Tokens:
        """How many tokens are under pressure."""
        return tail_start(self.prompt_tokens)


def refusal(scenario: Scenario) -> str | None:
    """Why no policy can be measured here, whatever the run holds; None if they can."""
    if scenario.quality is None:
        return "kvpress is scored on the questions of `quality`, which this scenario leaves out"
    return kvpress.missing()


def texts(records: QualityRecords) -> tuple[ScoredText, ...]:
    """What the baseline was asked and answered; empty until it has been."""
    reference = next((p for p in records.passes if p.head.kind == REFERENCE), None)
    if reference is None or reference.head.status != "sealed":
        return ()
    return tuple(_texts(records, reference))


def _texts(records: QualityRecords, reference: PassRecord) -> Iterator[ScoredText]:
    prompts = {prompt.index: prompt.prompt_token_ids for prompt in records.prompts}
    answers = {a.index: a.token_ids for a in reference.answers if a.error is None}
    for score in reference.scores:
        prompt, answer = prompts.get(score.index), answers.get(score.index)
        if score.error is not None or prompt is None:
            continue
        # The first token behind the prefill is foretold before anything is dropped.
        places = tuple(p for p in score.positions if p > tail_start(len(prompt)))
        if places:
            yield ScoredText(score.index, (*prompt, *(answer or ())), len(prompt), places)


def server_facts(engine: KvpressEngine, press: str) -> ServerFacts:
    """The child as it was started, in the words of a server's facts."""
    facts = engine.facts
    loaded: tuple[str, ...] = ()
    version = None
    if facts is not None:
        version = f"kvpress {facts.kvpress} on transformers {facts.transformers}"
        loaded = (f"torch {facts.torch}, {facts.dtype} on {facts.device}",)
    return ServerFacts(
        url="",
        launched=True,
        command=tuple(with_tilde(relative_to_here(word)) for word in kvpress.command()),
        env=engine.env,
        engine=kvpress.ENGINE,
        engine_version=version,
        attention_backend="eager" if press == "observed_attention" else "sdpa",
        startup_s=engine.startup_s,
        rss_loaded_bytes=tree_rss_bytes(engine.pid),
        log_kv_lines=loaded,
    )


def run_policy_trial(
    run_folder: Path,
    trial: TrialFacts,
    environment: Environment,
    engine: KvpressEngine,
    *,
    timeout_s: Seconds,
    progress: Progress,
) -> Run:
    """Measure one policy over all texts and seal it; returns what was written.

    A child that dies makes the trial ``failed`` with the end of its log.

    Raises:
        StoreError: results can't be written.
    """
    facts = server_facts(engine, str(trial.server_flags.get("press")))

    def load(folder: TrialFolder, clock: Clock) -> LoadOutcome:
        policy = _Policy(run_folder, folder, clock, engine, trial, timeout_s)
        failure = policy.play(texts(read_quality(run_folder)), progress)
        return LoadOutcome(0.0, clock.now(), failure)

    # Nothing is sampled: speed and memory over time are none of its figures.
    started = begin(trial, environment, facts)
    return record_trial(run_folder, started, engine.log_path, (), load)


class _Policy:
    """One policy under way: what was asked, and where it is written."""

    def __init__(
        self,
        run_folder: Path,
        folder: TrialFolder,
        clock: Clock,
        engine: KvpressEngine,
        trial: TrialFacts,
        timeout_s: Seconds,
    ) -> None:
        self._clock = clock
        self._run_folder = run_folder
        self._folder = folder
        self._engine = engine
        self._trial = trial
        self._timeout_s = timeout_s
        self._errors: list[str] = []
        self._pass_id = pass_id("variant", trial.variant)
        self._scores = scores_file(run_folder, self._pass_id)

    def play(self, asked: Sequence[ScoredText], progress: Progress) -> str | None:
        """Score every text; returns why the trial failed, if it did."""
        if not asked:
            return "the baseline has not answered the questions that kvpress is scored on"
        head = self._head("started", None)
        try:
            for done, text in enumerate(asked, start=1):
                self._one(text)
                progress.quality(f"kvpress, {self._trial.variant}", done, len(asked))
        except ServerDied as error:
            reason: str | None = error.told
        else:
            reason = every_one_failed("prompt", self._errors, len(asked))
        status: PassStatus = "sealed" if reason is None else "failed"
        write_pass(
            self._run_folder,
            replace(head, status=status, reason=reason, wall_s=self._clock.now()),
        )
        return reason

    def _head(self, status: PassStatus, reason: str | None) -> QualityPass:
        head = QualityPass(
            schema_version=SCHEMA_VERSION,
            pass_id=self._pass_id,
            kind="kvpress",
            variant=self._trial.variant,
            status=status,
            launches=(self._trial.launch,),
            concurrency=1,
            reverse=False,
            reason=reason,
        )
        write_pass(self._run_folder, head)
        return head

    def _one(self, text: ScoredText) -> None:
        sent_s = self._clock.now()
        flags = self._trial.server_flags
        found = self._engine.score(
            ScoreRequest(
                index=text.index,
                press=str(flags["press"]),
                compression_ratio=float(flags["compression_ratio"]),
                tokens=text.tokens,
                prefill=text.prefill,
                positions=text.positions,
            ),
            timeout_s=self._timeout_s,
        )
        error = found if isinstance(found, str) else None
        self._errors += [error] if error is not None else []
        if not isinstance(found, str):
            self._folder.append_sample(
                CacheSample(self._clock.now(), text.index, found.kept_tokens, found.cache_bytes)
            )
        self._folder.append_request(
            RequestRecord(
                index=text.index,
                phase="measured",
                prompt_tokens_planned=text.prefill,
                output_tokens_planned=len(text.tokens) - text.prefill,
                planned_send_s=sent_s,
                sent_s=sent_s,
                finished_s=self._clock.now(),
                prompt_tokens=text.prefill,
                error=error,
            )
        )
        self._scores.append(_score(text, found))


def _score(text: ScoredText, found: ScoreReply | str) -> QualityScore:
    if isinstance(found, str):
        return QualityScore(text.index, text.prompt_tokens, error=found)
    score = QualityScore(
        index=text.index,
        prompt_length=text.prompt_tokens,
        positions=text.positions,
        logprobs=found.logprobs,
        ranks=found.ranks,
        top_ids=found.top_ids,
        top_logprobs=found.top_logprobs,
    )
    if is_sound_score(score):
        return score
    # Such as a model whose numbers overflowed; what can't be read back is not written.
    return QualityScore(text.index, text.prompt_tokens, error="its probabilities are none")
