"""What a scenario for the reference engine may say: ``engine: reference``.

There is no server, so ``server`` and ``variants`` hold the few options below in place of vLLM's
flags; the pool is what a request's cache takes, so there is no KV budget; requests are answered
one at a time, so the loop is closed with one slot. Everything else of a scenario is as ever.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Field, ValidationError, model_validator

from harness.scenario.read import KeyPath
from harness.scenario.schema import SHAPES, Flags, Scenario, Strict, TokenCount


class ReferenceOptions(Strict):
    """How one variant of the reference engine keeps keys and values, and computes.

    ``cache``: ``none`` recomputes them for every token, ``growing`` keeps them, ``static`` keeps
    them in a reservation of ``max_cache_len`` tokens made at the first step.
    """

    cache: Literal["none", "growing", "static"] = "growing"
    max_cache_len: TokenCount | None = None
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    attention: Literal["sdpa", "eager"] = "sdpa"
    threads: Annotated[int, Field(ge=1, le=4096)] | None = None

    @model_validator(mode="after")
    def _reservation_has_a_length(self) -> Self:
        if (self.cache == "static") != (self.max_cache_len is not None):
            raise ValueError("max_cache_len is the length of cache: static; give both or neither")
        return self


def reference_options(flags: Mapping[str, Any]) -> ReferenceOptions:
    """Read the options of a trial; None takes back what ``server`` set, as with vLLM's flags."""
    return ReferenceOptions.model_validate({k: v for k, v in flags.items() if v is not None})


def reference_faults(scenario: Scenario) -> Iterator[tuple[str, KeyPath, list[str] | None]]:
    """Everything that a reference scenario must not say: the fault, its key path, what is legal."""
    if scenario.attach is not None:
        yield "the reference engine can't be attached to", ("attach",), None
    if scenario.kv_budget.mode != "engine":
        yield "the reference engine has no pool to size", ("kv_budget",), ["engine"]
    if scenario.quality is not None:
        yield "quality is asked of servers; the reference engine is none", ("quality",), None
    for index, workload in enumerate(scenario.workloads):
        if workload.concurrency != 1:
            fault = "the reference engine answers one request at a time"
            yield fault, ("workloads", index), ["concurrency: 1"]
        if any(getattr(workload, shape) is not None for shape in SHAPES):
            fault = f"the reference engine keeps nothing between requests: no {', '.join(SHAPES)}"
            yield fault, ("workloads", index), None
    for name in scenario.variants:
        yield from _variant_faults(scenario, name, scenario.flags_of(name))


def _variant_faults(
    scenario: Scenario, name: str, flags: Flags
) -> Iterator[tuple[str, KeyPath, list[str] | None]]:
    if scenario.variants[name].emulate is not None:
        fault = "the reference engine can reserve (cache: static); nothing needs emulation"
        yield fault, ("variants", name, "emulate"), None
    try:
        options = reference_options(flags)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = str(first["loc"][0]) if first["loc"] else None
        own = key in scenario.variants[name].flags
        place: KeyPath = ("variants", name) if own or key is None else ("server",)
        legal = list(ReferenceOptions.model_fields)
        message = str(first["msg"]).removeprefix("Value error, ")
        if first["type"] == "extra_forbidden":
            message = f"{key!r} is no option of the reference engine"
        yield message, place if key is None else (*place, key), legal
        return
    longest = max(workload.total_tokens for workload in scenario.workloads)
    if options.max_cache_len is not None and options.max_cache_len < longest:
        fault = f"a reservation of {options.max_cache_len} tokens can't hold requests of {longest}"
        yield fault, ("variants", name), None
