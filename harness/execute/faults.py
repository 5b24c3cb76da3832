"""What a scenario asks that its model can't do, told with file and line before anything starts.

Method: the outline of one repeat, as ``kvbench plan`` draws it, is looked at trial by trial; the
engine would say the same after a minute's start. Only what is sure is a fault: a length above every
one that the model's configuration gives, a stated pool that theory says holds no whole request,
GPUs over which the heads can't be spread, overrides that leave no readable model. Not covered: a
model whose configuration is not known here, and pools that the machine grants.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping

from harness.engines import models
from harness.errors import InputError, ModelConfigError, ScenarioError, UnsupportedModel
from harness.execute.facts import effective_config
from harness.execute.outline import PlannedTrial, outline
from harness.execute.strategies import check_heads, refusal
from harness.scenario import Fault, Scenario, Trial, expand
from harness.specs.fields import text_fields
from harness.specs.model import ModelSpec, model_spec
from harness.theory.capacity import predict_capacity, settings_from_flags
from harness.units import Tokens, format_bytes, format_count

_ALLOW_LONG = "VLLM_ALLOW_LONG_MAX_MODEL_LEN"


def model_faults(scenario: Scenario) -> Iterator[Fault]:
    """The faults of a scenario that launches servers, in the order of its variants."""
    if scenario.attach is not None or scenario.engine != "vllm":
        return
    once = scenario.model_copy(update={"repeats": 1})
    names = {trial.model for trial in expand(once) if trial.engine == "vllm"}
    known = {name: models.describe(name) for name in sorted(filter(None, names))}
    yield from _settings_faults(once, known)
    yield from _too_long(once, known)
    try:
        planned = outline(once)
    except ScenarioError as error:
        # Said by a layer that knows keys, but no file.
        yield Fault(error.what, _path(error.where, scenario), error.legal, error.next_move)
        return
    for item in planned:
        if (fault := _pool_fault(scenario, item)) is not None:
            yield fault


def _path(where: str | None, scenario: Scenario) -> tuple[str, ...]:
    """``variants.a.b.hf_overrides`` → its key path; a variant's name may hold dots."""
    for name in scenario.variants:
        start = f"variants.{name}."
        if where is not None and where.startswith(start):
            return ("variants", name, *where.removeprefix(start).split("."))
    return tuple((where or "").split(".")) if where else ()


def _settings_faults(
    scenario: Scenario, known: Mapping[str, models.ResolvedModel]
) -> Iterator[Fault]:
    """What theory refuses of a variant: a split that its heads don't allow, an odd override."""
    for trial in {trial.variant: trial for trial in expand(scenario)}.values():
        if trial.engine != "vllm" or trial.model is None:
            continue
        try:
            spec = _spec(known[trial.model], trial)
            if spec is not None:
                settings = settings_from_flags(trial.flags, scenario.profile, env=trial.env)
                predict_capacity(spec, settings, None)
        except UnsupportedModel:
            continue
        except ScenarioError as error:
            yield Fault(error.what, _path(error.where, scenario), error.legal, error.next_move)
        except InputError as error:
            flag = "hf_overrides" if isinstance(error, ModelConfigError) else error.where or ""
            if flag in scenario.unchecked_flags:
                continue
            placed = flag in trial.flags
            path = _flag_path(scenario, trial, flag) if placed else ("variants", trial.variant)
            yield Fault(error.what, path, error.legal, error.next_move)


def _spec(model: models.ResolvedModel, trial: Trial) -> ModelSpec | None:
    """The model as overridden; None where it can't be read without the overrides either.

    Raises:
        InputError: the overrides make it one that no engine can read.
    """
    config = effective_config(model.config, trial.flags)
    if model.config is None or config is None:
        return None
    check_heads(trial, config)
    try:
        model_spec(model.config, name=model.name)
    except ModelConfigError:
        return None
    return model_spec(config, name=f"hf_overrides of {trial.model}")


def _too_long(scenario: Scenario, known: Mapping[str, models.ResolvedModel]) -> Iterator[Fault]:
    for trial in expand(scenario):
        asked = trial.flags.get("max_model_len")
        allowed = {**os.environ, **trial.env}.get(_ALLOW_LONG, "0").strip().lower()
        listed = "max_model_len" in scenario.unchecked_flags
        if not isinstance(asked, int) or trial.model is None or listed or allowed in ("1", "true"):
            continue
        longest = _longest(trial, known[trial.model])
        if longest is not None and asked > longest:
            yield Fault(
                f"max_model_len {format_count(asked)} is more than the {format_count(longest)} "
                f"tokens of {trial.model}",
                _flag_path(scenario, trial, "max_model_len"),
                (f"1 to {longest}",),
                f"stretch it by hf_overrides, or set {_ALLOW_LONG}=1 under env if you know that "
                "it holds",
            )


def _longest(trial: Trial, model: models.ResolvedModel) -> Tokens | None:
    """The largest length that the configuration gives under any name; None if it gives none."""
    config = effective_config(model.config, trial.flags)
    if config is None:
        return None
    fields = text_fields(config)
    named = [fields.get(key) for key in ("max_position_embeddings", "model_max_length")]
    stated = [value for value in named if isinstance(value, int)]
    if not stated:
        return None
    try:
        return max(model_spec(config, name=model.name).max_model_len, *stated)
    except ModelConfigError:
        return None


def _flag_path(scenario: Scenario, trial: Trial, flag: str) -> tuple[str, ...]:
    own = scenario.variants[trial.variant].flags
    return ("variants", trial.variant, flag) if flag in own else ("server", flag)


def _pool_fault(scenario: Scenario, item: PlannedTrial) -> Fault | None:
    """A stated pool in which not even one request of ``max_model_len`` fits: no server starts."""
    capacity, trial = item.capacity, item.trial
    fits = None if capacity is None else capacity.max_concurrency
    overridden = "num_gpu_blocks_override" in trial.flags
    if capacity is None or fits is None or fits >= 1 or overridden:
        return None
    if refusal(trial, scenario.profile) is not None:
        return None
    stated = scenario.kv_budget.value_bytes is not None
    stated = stated or scenario.kv_budget.value_tokens is not None
    path = ("kv_budget",) if stated else _flag_path(scenario, trial, "kv_cache_memory_bytes")
    return Fault(
        f"a pool of {format_bytes(capacity.kv_cache_memory_bytes)} holds "
        f"{format_count(fits, 2)} requests of max_model_len "
        f"{format_count(capacity.max_model_len)} of variant {trial.variant!r}: the engine would "
        "not start",
        path,
        None,
        "state a larger pool, or a shorter server.max_model_len",
    )
