"""A trial → the requests it will send, decided before the first one goes out.

Method: every prompt is a list of ordinary token ids of an exact length (``lengths``). Its first
ids (as many as are needed, one or two in practice) spell a number that no other request of the
trial has, so no two prompts share even one block of the KV cache; the rest is drawn from a
generator seeded by the trial's seed and the request's index. Another repeat has another seed, so
its prompts differ too. Warm-ups come first and are numbered with the others.

Where a prefix is meant to be shared, it is drawn once from the trial's seed and stands before
that unique part. Where conversations return, a turn's prompt is a longer piece of the
conversation's own ids: what the model answered is not fed back, so that all prompts are known
beforehand. All conversations take one turn before any takes the next; in a closed loop with as
many slots as conversations a slow one may still be answering when its next turn is sent.

Not covered: text prompts, and images.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

from harness.errors import InputError
from harness.record import PlannedRequest
from harness.scenario import Trial
from harness.units import Tokens
from harness.workload.arrivals import arrival_times
from harness.workload.lengths import request_lengths, turn_length
from harness.workload.tokens import TokenRange


def plan(trial: Trial, tokens: TokenRange) -> tuple[PlannedRequest, ...]:
    """Return the trial's requests, warm-ups first; the same trial gives the same plan.

    In an open loop the measured requests carry ``planned_send_s``, relative to the moment at
    which the measured phase starts; warm-ups are always played in a closed loop.

    Raises:
        InputError: so many different prompts can't be built of so few tokens.
    """
    workload = trial.workload
    warmups = workload.warmup_requests
    due = _due_times(trial)
    prompts = _turns(trial, tokens) if workload.turns else _singles(trial, tokens)
    return tuple(
        PlannedRequest(
            index=index,
            phase="warmup" if index < warmups else "measured",
            prompt_token_ids=prompt,
            output_tokens=output,
            planned_send_s=due[index - warmups] if due and index >= warmups else None,
        )
        for index, (prompt, output) in enumerate(prompts)
    )


def _singles(trial: Trial, tokens: TokenRange) -> Iterator[tuple[tuple[int, ...], Tokens]]:
    """Prompt and output length of each request that stands for itself, warm-ups first."""
    workload = trial.workload
    count = workload.warmup_requests + workload.num_prompts
    lengths = request_lengths(workload, count, trial.seed)
    shared = _shared_prefix(trial, tokens)
    own = [prompt - len(shared) for prompt, _ in lengths]
    heads = _unique_heads(count, min(own), tokens, trial.seed)
    for index, (head, length) in enumerate(zip(heads, own, strict=True)):
        prompt = _prompt(head, length, tokens, trial.seed, index)
        yield (*shared, *prompt), lengths[index][1]


def _shared_prefix(trial: Trial, tokens: TokenRange) -> tuple[int, ...]:
    length = trial.workload.shared_prefix_tokens or 0
    rng = random.Random(f"{trial.seed}/shared")  # noqa: S311 - reproducible, not secret
    return tuple(rng.choices(range(tokens.first, tokens.last + 1), k=length))


def _turns(trial: Trial, tokens: TokenRange) -> Iterator[tuple[tuple[int, ...], Tokens]]:
    """The warm-ups (first turns of conversations that never return), then turn after turn."""
    workload = trial.workload
    turns, warmups = workload.turns or 1, workload.warmup_requests
    count = warmups + workload.num_prompts // turns
    heads = _unique_heads(count, turn_length(workload, 0), tokens, trial.seed)
    stories = [
        _prompt(head, workload.context_tokens, tokens, trial.seed, index)
        for index, head in enumerate(heads)
    ]
    for story in stories[:warmups]:
        yield story[: turn_length(workload, 0)], workload.output_tokens
    for turn in range(turns):
        for story in stories[warmups:]:
            yield story[: turn_length(workload, turn)], workload.output_tokens


def _due_times(trial: Trial) -> tuple[float, ...] | None:
    workload = trial.workload
    if workload.request_rate is None:
        return None
    rng = random.Random(f"{trial.seed}/arrivals")  # noqa: S311 - reproducible, not secret
    return arrival_times(workload.num_prompts, workload.request_rate, workload.burstiness, rng)


def _prompt(
    head: tuple[int, ...], length: Tokens, tokens: TokenRange, seed: int, index: int
) -> tuple[int, ...]:
    rng = random.Random(f"{seed}/{index}")  # noqa: S311 - reproducible, not secret
    ids = range(tokens.first, tokens.last + 1)
    return (*head, *rng.choices(ids, k=length - len(head)))


def _unique_heads(
    count: int, length: Tokens, tokens: TokenRange, seed: int
) -> Iterator[tuple[int, ...]]:
    """Yield ``count`` different id sequences of the same, smallest sufficient length.

    They are the digits, to the base of the range's size, of start, start + 1, …: the start is
    drawn from the seed, so that another trial's prompts begin elsewhere.
    """
    base = len(tokens)
    digits = 1
    while base**digits < count:
        digits += 1
    if digits > length:
        raise InputError(
            f"{count} different prompts of {length} tokens can't be built from {base} token ids",
            where="workload: context_tokens, num_prompts",
            next_move="raise context_tokens or lower num_prompts",
        )
    # One more digit, where there is room, sets trials with different seeds further apart.
    digits = min(digits + 1, length)
    space = base**digits
    start = random.Random(f"{seed}/heads").randrange(space)  # noqa: S311
    for offset in range(count):
        yield _digits((start + offset) % space, base, digits, tokens.first)


def _digits(number: int, base: int, count: int, first: int) -> tuple[int, ...]:
    digits = []
    for _ in range(count):
        number, digit = divmod(number, base)
        digits.append(first + digit)
    return tuple(digits)
