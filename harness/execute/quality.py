"""Which quality pass is due at which server launch, and its playing and recording.

Method: after the workloads of a launch its server is asked the questions. The baseline's first
launch answers first (``reference``); its next launch answers again, in other batches and order
(``self``, the noise floor); a variant answers at its first launch after the reference stands,
since it is scored on the baseline's answers. A pass that failed or was interrupted is taken up at
the next launch of its variant, or by ``--resume``; what it recorded stays. With one repeat the
baseline answers again at the same launch. Where no judge is named, the baseline's server judges
at its next launch after the variants' (there is none with one repeat); a named judge is asked
when all servers are gone. Policies of kvpress answer nothing (``kvpress_trials``).

Not covered: variants with a checkpoint of their own, whose tokens are not the baseline's, and
reshaped models, whose weights can only be random.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

from harness.analysis.quality import writes_no_text
from harness.errors import EngineError, InputError, NotFound
from harness.execute.judging import SELF_JUDGE, api_key, check_url, judge_stored
from harness.execute.progress import Progress
from harness.load import Target
from harness.quality.client import EngineClient
from harness.quality.judge import PASSAGE_CHARACTERS, VERDICT_TOKENS, JudgeTarget
from harness.quality.passes import Asking, ask_all, score_all
from harness.quality.prompts import exact_prompt, read_text, read_user_prompts, user_prompt
from harness.record import (
    SCHEMA_VERSION,
    PassRecord,
    PassStatus,
    QualityKind,
    QualityPass,
    QualityPrompt,
    QualityRecords,
)
from harness.scenario import Judge, Quality, Scenario, Trial, slugify
from harness.scenario.load import NEEDLE_ANSWER_TOKENS
from harness.specs.eviction import SnapKvRule, rule_from_env
from harness.store import (
    answers_file,
    read_quality,
    scores_file,
    write_pass,
    write_prompts,
)
from harness.units import Seconds, Tokens
from harness.workload.corpus import (
    PASSAGES,
    Draft,
    needle_drafts,
    paragraphs_of,
    passages,
    prose,
    task_drafts,
)
from harness.workload.prompt_file import UserPrompt

#: The baseline's second pass has so many requests in a batch.
SELF_CONCURRENCY = 4
#: Enough text for any tokenizer: English has four to five characters to a token.
CHARACTERS_PER_TOKEN = 8

#: The instructions of a judge and of its task; English has at least so many characters a token.
QUESTION_TOKENS = 280
FEWEST_CHARACTERS_PER_TOKEN = 3

#: The logits processor by which a server can be made to decode a given text.
FORCED = "harness.engines.eviction.forced:ForcedTokens"

Due = QualityKind | Literal["judge"]

REFERENCE: QualityKind = "reference"
SELF: QualityKind = "self"


@dataclasses.dataclass(frozen=True, slots=True)
class QuestionedServer:
    """A healthy server and what is known of it: where it is, whether it lives, its warnings."""

    target: Target
    death: Callable[[], str | None]
    log_warnings: tuple[str, ...]


def pass_id(kind: QualityKind, variant: str) -> str:
    """The name of a pass's folder."""
    return f"variant-{slugify(variant)}" if kind == "variant" else kind


def check_inputs(quality: Quality | None) -> None:
    """Read the user's own files once before anything is started.

    Raises:
        InputError: a file can't be read, or holds nothing usable; the judge's key is none.
    """
    if quality is None:
        return
    _sources(quality)
    if quality.judge is not None and quality.judge.url is not None:
        check_url(quality.judge.url)
        api_key()
    if quality.prompts is not None:
        read_user_prompts(Path(quality.prompts))


def is_asked(scenario: Scenario, trial: Trial) -> bool:
    """Whether the trial's server is asked anything about quality, at whatever launch."""
    if scenario.quality is None or trial.engine != "vllm" or trial.model != scenario.model:
        return False
    return not writes_no_text(trial.flags)


def due(folder: Path, scenario: Scenario, trial: Trial) -> tuple[Due, ...]:
    """What this launch is to play, in order; empty where quality is off or done."""
    if not is_asked(scenario, trial):
        return ()
    records = read_quality(folder)
    stored = {record.head.pass_id: record.head for record in records.passes}
    sealed = {name for name, head in stored.items() if head.status == "sealed"}
    if not trial.is_baseline:
        mine = pass_id("variant", trial.variant)
        return ("variant",) if REFERENCE in sealed and mine not in sealed else ()
    wanted: list[Due] = [] if REFERENCE in sealed else [REFERENCE]
    first = trial.launch if wanted else stored[REFERENCE].launches[-1]
    last = trial.repeat == scenario.repeats - 1
    if SELF not in sealed and (trial.launch != first or last):
        wanted.append(SELF)
    if _self_judge_due(records, scenario, last=last):
        wanted.append("judge")
    return tuple(wanted)


def _self_judge_due(records: QualityRecords, scenario: Scenario, *, last: bool) -> bool:
    """Whether the baseline's server is to judge: once all variants answered, or at its last."""
    judge = scenario.quality.judge if scenario.quality is not None else None
    if judge is None or judge.url is not None:
        return False
    if any(j.head.judge_id == SELF_JUDGE and j.head.status == "sealed" for j in records.judges):
        return False
    answered = {
        p.head.variant
        for p in records.passes
        if p.head.kind == "variant" and p.head.status == "sealed"
    }
    expected = {name for name in scenario.served if name != scenario.baseline}
    expected -= {name for name in expected if writes_no_text(scenario.flags_of(name))}
    return bool(answered) and (last or answered == expected)


def play_due(
    folder: Path,
    scenario: Scenario,
    trial: Trial,
    server: QuestionedServer,
    progress: Progress,
) -> Seconds:
    """Play what is due at this launch; a failure is recorded and told. Returns the time taken.

    Raises:
        StoreError: results can't be written.
    """
    began = time.monotonic()
    for kind in due(folder, scenario, trial):
        if kind == "judge":
            _judge_self(folder, scenario, server, progress)
            continue
        head = _play(folder, scenario, trial, kind, server, progress)
        if head.status != "sealed":
            progress.warn(f"quality of {trial.variant} ({kind}): {head.reason}")
            break
    return time.monotonic() - began


def _judge_self(
    folder: Path, scenario: Scenario, server: QuestionedServer, progress: Progress
) -> None:
    """Let the baseline's server judge, with as much of a passage as its context holds."""
    quality = scenario.quality or Quality()
    judge = quality.judge or Judge()
    limit = scenario.server.get("max_model_len")
    characters = PASSAGE_CHARACTERS
    if isinstance(limit, int):
        free = limit - VERDICT_TOKENS - 2 * quality.answer_tokens - QUESTION_TOKENS
        characters = max(200, min(characters, free * FEWEST_CHARACTERS_PER_TOKEN))
    target = JudgeTarget(
        url=server.target.base_url,
        model=server.target.model,
        api_key=server.target.api_key,
        timeout_s=server.target.timeout_s,
        passage_characters=characters,
    )
    head = judge_stored(
        folder,
        target,
        margin=judge.margin,
        is_self=True,
        progress=lambda done, total: progress.quality("judging itself", done, total),
        death=server.death,
    )
    if head.status != "sealed":
        progress.warn(f"judge: {head.reason}")


def ask_named_judge(folder: Path, scenario: Scenario, progress: Progress) -> Seconds:
    """Ask the judge that the scenario names, if it does; returns the time taken.

    Raises:
        StoreError: verdicts can't be written.
    """
    judge = scenario.quality.judge if scenario.quality is not None else None
    if judge is None or judge.url is None or judge.model is None:
        return 0.0
    began = time.monotonic()
    try:
        target = JudgeTarget(check_url(judge.url), judge.model, api_key())
        head = judge_stored(
            folder,
            target,
            margin=judge.margin,
            progress=lambda done, total: progress.quality(f"judge {judge.model}", done, total),
        )
        reason = head.reason if head.status != "sealed" else None
    except (NotFound, InputError) as error:
        # Whatever is wrong with a judge, the run has its report.
        reason = error.what
    if reason is not None:
        progress.warn(f"judge {judge.model}: {reason}")
    return time.monotonic() - began


def _play(
    folder: Path,
    scenario: Scenario,
    trial: Trial,
    kind: QualityKind,
    server: QuestionedServer,
    progress: Progress,
) -> QualityPass:
    stored = read_quality(folder)
    began = time.monotonic()
    head = _head(kind, trial, server, _earlier(stored, pass_id(kind, trial.variant)))
    write_pass(folder, head)
    client = EngineClient(
        server.target.base_url, server.target.model, server.target.api_key, server.target.timeout_s
    )
    try:
        dead = server.death()
        reason = f"the server died before it was asked: {dead}" if dead else None
        if reason is None:
            prompts, left_out = _prompts(folder, scenario, stored, client, progress)
            head = dataclasses.replace(head, left_out=left_out or head.left_out)
            reason = _ask(folder, scenario, head, prompts, client, server, progress)
    except (EngineError, InputError) as error:
        reason = str(error)
    finally:
        client.close()
    status: PassStatus = "sealed" if reason is None else "failed"
    wall_s = (head.wall_s or 0.0) + time.monotonic() - began
    head = dataclasses.replace(head, status=status, reason=reason, wall_s=wall_s)
    write_pass(folder, head)
    return head


def _earlier(stored: QualityRecords, name: str) -> PassRecord | None:
    return next((record for record in stored.passes if record.head.pass_id == name), None)


def _head(
    kind: QualityKind, trial: Trial, server: QuestionedServer, earlier: PassRecord | None
) -> QualityPass:
    before = earlier.head if earlier is not None else None
    launches = (*before.launches, trial.launch) if before is not None else (trial.launch,)
    return QualityPass(
        schema_version=SCHEMA_VERSION,
        pass_id=pass_id(kind, trial.variant),
        kind=kind,
        variant=trial.variant,
        status="started",
        launches=tuple(dict.fromkeys(launches)),
        concurrency=SELF_CONCURRENCY if kind == SELF else 1,
        reverse=kind == SELF,
        wall_s=before.wall_s if before is not None else None,
        log_warnings=server.log_warnings,
        left_out=before.left_out if before is not None else (),
    )


def _ask(
    folder: Path,
    scenario: Scenario,
    head: QualityPass,
    prompts: Sequence[QualityPrompt],
    client: EngineClient,
    server: QuestionedServer,
    progress: Progress,
) -> str | None:
    """Play one pass; returns why it could not be finished."""
    quality = scenario.quality or Quality()

    scoring = scoring_of(scenario, head.variant)

    def asking(what: Literal["answers", "scores"]) -> Asking:
        decoding = what == "scores" and scoring == "behind"
        return Asking(
            concurrency=SELF_CONCURRENCY if decoding else head.concurrency,
            reverse=head.reverse,
            answer_tokens=quality.answer_tokens,
            needle_answer_tokens=NEEDLE_ANSWER_TOKENS,
            death=server.death,
            progress=lambda done, total: progress.quality(f"{head.pass_id}: {what}", done, total),
            behind=scoring == "behind",
        )

    before = _earlier(read_quality(folder), head.pass_id)
    answered, scored = (before.answers, before.scores) if before is not None else ((), ())
    keep = answers_file(folder, head.pass_id)
    reason = ask_all(client, prompts, answered, asking("answers"), keep.append)
    if reason is not None or scoring is None:
        return reason
    reference = _earlier(read_quality(folder), REFERENCE)
    given = {a.index: a for a in reference.answers if a.error is None} if reference else {}
    keep = scores_file(folder, head.pass_id)
    return score_all(client, prompts, given, scored, asking("scores"), keep.append)


def scoring_of(scenario: Scenario, variant: str) -> Literal["prefill", "behind"] | None:
    """How a server's probabilities of a given text are to be had.

    Where prompts are cut once they are computed, the cut can't be seen in their own
    probabilities: their tails are scored by decoding them, if the server was given the means;
    otherwise (None) they are not scored, since that would show full attention's.
    """
    if not isinstance(rule_from_env(scenario.env_of(variant)), SnapKvRule):
        return "prefill"
    processors = scenario.flags_of(variant).get("logits_processors")
    return "behind" if isinstance(processors, list) and FORCED in processors else None


def _prompts(
    folder: Path,
    scenario: Scenario,
    stored: QualityRecords,
    client: EngineClient,
    progress: Progress,
) -> tuple[tuple[QualityPrompt, ...], tuple[str, ...]]:
    """The questions of the run: those stored, else made now with the baseline's tokenizer."""
    if stored.prompts:
        return stored.prompts, ()
    quality = scenario.quality or Quality()
    made, left_out = (
        _from_file(quality, client) if quality.prompts else _from_tasks(scenario, client, progress)
    )
    drafts = list(_needles(quality, scenario.seed))
    for done, draft in enumerate(drafts):
        made.append(exact_prompt(client, len(made), draft, draft.context_tokens or 0))
        progress.quality("making needle questions", done + 1, len(drafts))
    write_prompts(folder, made)
    return tuple(made), left_out


def _from_tasks(
    scenario: Scenario, client: EngineClient, progress: Progress
) -> tuple[list[QualityPrompt], tuple[str, ...]]:
    quality = scenario.quality or Quality()
    length = quality.context_tokens or scenario.workloads[0].context_tokens
    drafts = task_drafts(
        _sources(quality), quality.num_prompts, length * CHARACTERS_PER_TOKEN, scenario.seed
    )
    made: list[QualityPrompt] = []
    for draft in drafts:
        made.append(exact_prompt(client, len(made), draft, length))
        progress.quality("making questions", len(made), quality.num_prompts)
    return made, ()


def _from_file(
    quality: Quality, client: EngineClient
) -> tuple[list[QualityPrompt], tuple[str, ...]]:
    """The user's first prompts; what can't be used is named, those that are too long among it."""
    path = Path(quality.prompts or "")
    given, bad = read_user_prompts(path)
    limit = client.max_model_len()
    made: list[QualityPrompt] = []
    left_out = list(bad)
    for prompt in given:
        if len(made) == quality.num_prompts:
            break
        one, why = _user_prompt(client, len(made), prompt, quality.answer_tokens, limit)
        if one is None:
            left_out.append(f"{prompt.where}: {why}")
        else:
            made.append(one)
    if not made:
        raise InputError(
            "no prompt of the file fits the model",
            where=str(path),
            evidence="\n".join(left_out[:5]),
        )
    return made, tuple(f"{path.name}, {told}" for told in left_out)


def _user_prompt(
    client: EngineClient,
    index: int,
    prompt: UserPrompt,
    answer_tokens: Tokens,
    limit: Tokens | None,
) -> tuple[QualityPrompt | None, str]:
    """A user's prompt as the model takes it, else why it does not."""
    from openai import BadRequestError

    try:
        one = user_prompt(client, index, prompt)
    except EngineError as error:
        # The server refuses this conversation, by its chat template for one; others may do.
        if not isinstance(error.__cause__, BadRequestError):
            raise
        return None, error.what
    needed = len(one.prompt_token_ids) + answer_tokens
    if limit is not None and needed > limit:
        return None, f"{needed} tokens with its answer, {limit} fit"
    return one, ""


def _needles(quality: Quality, seed: int) -> Sequence[Draft]:
    grid = quality.needles
    if grid is None:
        return ()
    return tuple(
        needle_drafts(
            _sources(quality),
            grid.context_tokens,
            grid.depths,
            CHARACTERS_PER_TOKEN,
            seed,
            grid.per_cell,
        )
    )


def _sources(quality: Quality) -> tuple[str, ...]:
    """The passages: the user's own text, else the prose that ships with Python."""
    if quality.haystack is None:
        from pydoc_data.topics import topics

        return passages(prose(topics))
    paragraphs = paragraphs_of(read_text(Path(quality.haystack), "quality.haystack"), PASSAGES)
    if not paragraphs:
        raise InputError("the haystack holds no text", where="quality.haystack")
    return passages(paragraphs, min(PASSAGES, len(paragraphs)))
