"""A checked scenario → its trials, in the order in which they are to be run.

Repeats are interleaved (A B, B A, A B …), so that a drift of the machine falls on both sides;
each (repeat, variant) is one server launch, the replicate of the statistics, and serves every
workload. In odd repeats the workloads are played in reverse, for the same reason. The policies of
kvpress are measured once, behind the first repeat, by one process that stands for a launch.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Literal

from harness.scenario.load import slugify
from harness.scenario.schema import Flags, KvBudget, Scenario, Workload, tail_start

#: The name of kvpress's workload: the prompts of the quality questions.
PRESSED = "behind a compressed prefill"


@dataclass(frozen=True, slots=True)
class Trial:
    """One fully resolved point: a server configuration, a workload, a repeat.

    ``flags`` are the server's flags with the variant's laid over them, in vLLM's spelling;
    ``launch`` counts server launches from 0; ``seed`` fixes the prompts and arrival times and
    differs between repeats and workloads, but not between variants, which get the same load.
    """

    trial_id: str
    scenario: str
    profile: str
    model: str | None
    attach: str | None
    variant: str
    is_baseline: bool
    repeat: int
    launch: int
    flags: Flags
    env: dict[str, str]
    workload: Workload
    seed: int
    kv_budget: KvBudget
    emulate: Literal["preallocation"] | None = None
    engine: Literal["vllm", "reference", "kvpress"] = "vllm"

    @property
    def stamp(self) -> Literal["measured", "emulated"]:
        """What the trial's figures are."""
        return "measured" if self.emulate is None else "emulated"


def expand(scenario: Scenario) -> tuple[Trial, ...]:
    """Return every trial of the scenario in running order."""
    trials: list[Trial] = []
    launch = 0
    names = list(scenario.served)
    for repeat in range(scenario.repeats):
        workloads = list(enumerate(scenario.workloads))
        if repeat % 2:
            workloads.reverse()
        for name in names if repeat % 2 == 0 else reversed(names):
            trials.extend(
                _trial(scenario, name, index, workload, repeat, launch)
                for index, workload in workloads
            )
            launch += 1
        if repeat == 0 and len(names) < len(scenario.variants):
            trials.extend(_pressed(scenario, launch))
            launch += 1
    return tuple(trials)


def _pressed(scenario: Scenario, launch: int) -> list[Trial]:
    """The trials of kvpress: every prompt's prefill under a policy, its tail scored behind it."""
    quality = scenario.quality
    asked = quality.context_tokens if quality is not None else None
    length = asked or scenario.workloads[0].context_tokens
    prefill = max(tail_start(length), 1)
    workload = Workload(
        name=PRESSED,
        context_tokens=prefill,
        output_tokens=max(length - prefill, 1),
        num_prompts=quality.num_prompts if quality is not None else 1,
        concurrency=1,
        warmup_requests=0,
    )
    names = [name for name in scenario.variants if name not in scenario.served]
    return [_trial(scenario, name, 0, workload, 0, launch) for name in names]


def _trial(
    scenario: Scenario, name: str, index: int, workload: Workload, repeat: int, launch: int
) -> Trial:
    variant = scenario.variants[name]
    press = variant.kvpress
    flags, env = scenario.flags_of(name), scenario.env_of(name)
    kind: Literal["vllm", "reference", "kvpress"] = scenario.engine
    if press is not None:
        # None of the servers' settings reach it.
        flags, env, kind = press.model_dump(), {}, "kvpress"
    seed = _seed(scenario.seed, index, repeat)
    model = variant.model or scenario.model
    identity = {
        "profile": scenario.profile,
        "model": model,
        "attach": scenario.attach,
        "flags": flags,
        "env": env,
        "workload": workload.model_dump(exclude={"name"}),
        "repeat": repeat,
        "seed": seed,
        "kv_budget": scenario.kv_budget.model_dump(),
        "emulate": variant.emulate,
    }
    if kind != "vllm":
        identity["engine"] = kind
    return Trial(
        trial_id=f"{_slug(name, workload, repeat)}-{_digest(identity)}",
        scenario=scenario.name,
        profile=scenario.profile,
        model=model,
        attach=scenario.attach,
        variant=name,
        is_baseline=name == scenario.baseline,
        repeat=repeat,
        launch=launch,
        flags=flags,
        env=env,
        workload=workload,
        seed=seed,
        kv_budget=scenario.kv_budget,
        emulate=variant.emulate,
        engine=kind,
    )


def _slug(name: str, workload: Workload, repeat: int) -> str:
    loop = (
        f"x{workload.concurrency}"
        if workload.concurrency is not None
        else f"at{workload.request_rate:g}rps"
    )
    size = f"{workload.context_tokens}in{workload.output_tokens}out{workload.num_prompts}n{loop}"
    return f"{slugify(name)}-{size}-r{repeat}"


def _digest(identity: Mapping[str, Any]) -> str:
    text = json.dumps(identity, sort_keys=True, ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()[:10]


def _seed(base: int, workload_index: int, repeat: int) -> int:
    digest = hashlib.sha256(f"{base}/{workload_index}/{repeat}".encode()).digest()
    return int.from_bytes(digest[:6], "big")


def launch_groups(trials: Sequence[Trial]) -> tuple[tuple[Trial, ...], ...]:
    """Group consecutive trials that share one server launch."""
    return tuple(tuple(group) for _, group in groupby(trials, key=lambda trial: trial.launch))


def server_command_flags(flags: Mapping[str, Any]) -> tuple[str, ...]:
    """vLLM flags as a scenario gives them → arguments of the server's command line.

    ``true`` → ``--flag``, ``false`` → ``--no-flag``, a list → one flag with several values, a
    mapping → JSON, ``null`` → left out (so a variant can take back what ``server`` set).
    """
    words: list[str] = []
    for name, value in flags.items():
        flag = name.replace("_", "-")
        if value is None:
            continue
        if isinstance(value, bool):
            words.append(f"--{flag}" if value else f"--no-{flag}")
        elif isinstance(value, list):
            words.extend([f"--{flag}", *(_word(item) for item in value)])
        else:
            words.extend([f"--{flag}", _word(value)])
    return tuple(words)


def _word(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
