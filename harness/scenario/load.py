"""A scenario file and a profile → a checked ``Scenario``; every fault names file, line and key.

The profile's part (``profiles.<name>``) is laid over the rest of the file: mappings are merged
key by key, everything else is replaced, the KV budget too, which is one choice; then ``--set``
overrides are applied. Every profile of the file is checked, also those not asked for, so that a
fault is found before the day it is needed.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from harness.errors import InputError, ScenarioError, did_you_mean
from harness.overlay import overlay
from harness.scenario.address import address_fault
from harness.scenario.flags import UNCHECKED, flag_fault
from harness.scenario.read import Document, KeyPath, dotted, parse_value, read_document
from harness.scenario.reference import reference_faults
from harness.scenario.schema import (
    MATRIX_KEYS,
    PROFILES,
    VARIANT_KEYS,
    Judge,
    LengthMix,
    Needles,
    Quality,
    Scenario,
    Slo,
    Strict,
    Timeouts,
    Workload,
    check_env,
    check_flags,
)
from harness.scenario.wording import explain, meant, missing_beside, told_first
from harness.specs.eviction import VARIABLE as EVICTION_VARIABLE
from harness.specs.eviction import parse_rule

TOP_KEYS = (
    "schema",
    "name",
    "question",
    "claims",
    "engine",
    "model",
    "attach",
    "baseline",
    "server",
    "unchecked_flags",
    "env",
    "variants",
    "kv_budget",
    "workloads",
    "repeats",
    "seed",
    "slo",
    "timeouts",
    "quality",
    "profiles",
)
PROFILE_KEYS = tuple(key for key in TOP_KEYS if key not in ("schema", "name", "profiles"))
MAX_TRIALS = 100_000
#: The longest answer to a needle question.
NEEDLE_ANSWER_TOKENS = 16
#: Where a judge's key is looked for first.
JUDGE_KEY_VARIABLE = "KVBENCH_JUDGE_API_KEY"
ATTACHED_VARIANT = "attached"
#: Flags that size the KV pool, which is the budget's business.
POOL_FLAGS = ("kv_cache_memory_bytes", "num_gpu_blocks_override")


@dataclass(frozen=True, slots=True)
class Fault:
    """What is wrong at a key path of a resolved scenario, what is legal, and the next move."""

    what: str
    path: KeyPath
    legal: Sequence[str] | None = None
    next_move: str | None = None


def load_scenario(
    path: Path,
    profile: str,
    *,
    overrides: Sequence[str] = (),
    attach: str | None = None,
    further: Callable[[Scenario], Iterable[Fault]] = lambda _scenario: (),
) -> Scenario:
    """Read a scenario and resolve it for one profile.

    ``overrides`` are ``key.path=value`` texts; ``attach`` is the URL of a running server that
    takes the place of everything launched. ``further`` looks for faults that a floor above knows
    of, in the profile asked for; the first is told with its place.

    Raises:
        NotFound: there is no such file.
        ScenarioError: the file or an override says something that can't be run.
    """
    document = read_document(path)
    _check_keys(document)
    scenario = _resolve_told(document, profile, overrides, attach)
    for other in PROFILES:
        if other != profile and other in (document.values.get("profiles") or {}):
            _resolve_told(document, other, (), None)
    for fault in further(scenario):
        spot = _Spot(document, profile, overrides, attach)
        raise spot.fail(fault.what, fault.path, legal=fault.legal, next_move=fault.next_move)
    return scenario


def _resolve_told(
    document: Document, profile: str, overrides: Sequence[str], attach: str | None
) -> Scenario:
    """Resolve, and name the profile in a fault that the file without it does not have."""
    try:
        return _resolve(document, profile, overrides, attach)
    except ScenarioError as error:
        if profile in (document.values.get("profiles") or {}):
            values = {k: v for k, v in document.values.items() if k != "profiles"}
            bare = replace(document, values=values)
            if error.what != _fault(bare, profile, overrides, attach):
                error.what = f"in profile {profile}: {error.what}"
        raise


def _fault(
    document: Document, profile: str, overrides: Sequence[str], attach: str | None
) -> str | None:
    try:
        _resolve(document, profile, overrides, attach)
    except ScenarioError as error:
        return error.what
    return None


def _check_keys(document: Document) -> None:
    _refuse_unknown(document, document.values, (), TOP_KEYS)
    if document.values.get("schema") != 1:
        raise ScenarioError(
            f"schema is {document.values.get('schema')!r}; this version of kvbench reads schema 1",
            where=document.where(("schema",)),
            legal=["1"],
            next_move="begin the file with `schema: 1`",
        )
    profiles = document.values.get("profiles", {})
    if not isinstance(profiles, dict):
        raise ScenarioError(
            "profiles is a mapping of profile to overrides",
            where=document.where(("profiles",)),
            legal=PROFILES,
        )
    _refuse_unknown(document, profiles, ("profiles",), PROFILES)
    for name, part in profiles.items():
        if not isinstance(part, dict):
            raise ScenarioError(
                "a profile is a mapping of scenario keys",
                where=document.where(("profiles", name)),
                legal=PROFILE_KEYS,
            )
        _refuse_unknown(document, part, ("profiles", name), PROFILE_KEYS)


def _refuse_unknown(
    document: Document, mapping: Mapping[Any, Any], path: KeyPath, legal: Sequence[str]
) -> None:
    for key in mapping:
        if key not in legal:
            raise ScenarioError(
                f"there is no key {str(key)!r} here",
                where=document.where((*path, str(key))),
                legal=legal,
                next_move=did_you_mean(str(key), legal),
            )


def _resolve(
    document: Document, profile: str, overrides: Sequence[str], attach: str | None
) -> Scenario:
    part = (document.values.get("profiles") or {}).get(profile, {})
    values = overlay({k: v for k, v in document.values.items() if k != "profiles"}, part)
    if "kv_budget" in part:
        values["kv_budget"] = part["kv_budget"]
    values = _apply_overrides(values, overrides)
    values["profile"] = profile
    if attach is not None:
        values["attach"] = attach
        for key in ("server", "env", "variants", "baseline", "kv_budget"):
            values.pop(key, None)
        if not any(text.partition("=")[0].strip() == "model" for text in overrides):
            # The model that servers would be launched with is not what this one serves.
            values.pop("model", None)
    spot = _Spot(document, profile, overrides, attach)
    _fill_optional(values, spot)
    _check_flag_names(values, spot)
    expanded, origins = _expand_workloads(values.get("workloads"), spot)
    values["workloads"] = expanded
    scenario = _validate(values, spot, origins)
    _check_scenario(scenario, spot, origins)
    return scenario


class _Spot:
    """Finds where a key of the resolved scenario was written.

    The command line goes before the file, and in the file the profile's part before the rest.
    """

    def __init__(
        self, document: Document, profile: str, overrides: Sequence[str], attach: str | None
    ) -> None:
        self.document = document
        self.profile = profile
        self.options = {text.partition("=")[0].strip(): f"--set {text}" for text in overrides}
        if attach is not None:
            self.options["attach"] = f"--url {attach}"

    def where(self, path: KeyPath) -> str:
        """The place of a key path: an option, or ``file:line (key.path)``."""
        for length in range(len(path), 0, -1):
            option = self.options.get(dotted(path[:length]))
            if option is not None:
                return option
        inside = ("profiles", self.profile, *path)
        for length in range(len(inside), 2, -1):
            if inside[:length] in self.document.lines:
                if length > 2 + (path[:1] in self.document.lines and len(path) > 1):
                    return self.document.where(inside)
                break
        return self.document.where(path)

    def fail(self, what: str, path: KeyPath, **more: Any) -> ScenarioError:
        """A ScenarioError that names the place."""
        return ScenarioError(what, where=self.where(path), **more)

    def key(self, path: str) -> str:
        """Where a key is to be written so that it acts on this profile alone, if the file has it.

        A profile that lowers a limit needs requests of its own, not shorter ones for everybody.
        """
        has_part = self.profile in (self.document.values.get("profiles") or {})
        return f"profiles.{self.profile}.{path}" if has_part else path


def _apply_overrides(values: dict[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    for text in overrides:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise ScenarioError(
                f"{text!r} is no override",
                where="--set",
                legal=["key.path=value, such as repeats=1 or workloads.0.concurrency=[1,4]"],
            )
        path = [part.strip() for part in key.split(".")]
        if path[0] not in PROFILE_KEYS and path[0] != "name":
            raise ScenarioError(
                f"there is no key {path[0]!r} to set",
                where=f"--set {text}",
                legal=PROFILE_KEYS,
                next_move=did_you_mean(path[0], PROFILE_KEYS)
                or "overrides act on the profile in force: leave `profiles.<name>.` out",
            )
        if path[0] == "kv_budget":
            values = {**values, "kv_budget": None}
        values = _with_value(values, path, parse_value(value, source=f"--set {key}"), text)
    return values


def _with_value(node: Any, path: Sequence[str], value: Any, text: str) -> Any:
    """A copy of ``node`` in which ``path`` holds ``value``."""
    if not path:
        return value
    head, *rest = path
    if isinstance(node, list):
        if head not in {str(index) for index in range(len(node))}:
            raise ScenarioError(
                f"{head!r} is no item of this list",
                where=f"--set {text}",
                legal=[f"0 to {len(node) - 1}"] if node else [],
            )
        items = list(node)
        items[int(head)] = _with_value(items[int(head)], rest, value, text)
        return items
    if node is None or isinstance(node, dict):
        return {**(node or {}), head: _with_value((node or {}).get(head), rest, value, text)}
    raise ScenarioError(f"{head!r} lies inside a plain value", where=f"--set {text}")


def _fill_optional(values: dict[str, Any], spot: _Spot) -> None:
    if values.get("attach") is not None:
        _check_attach(values, spot)
        values.setdefault("variants", {ATTACHED_VARIANT: {}})
        values.setdefault("baseline", ATTACHED_VARIANT)
        values.setdefault("kv_budget", "engine")
        return
    for key in ("model", "variants", "baseline"):
        if values.get(key) is None:
            raise spot.fail(
                f"{key!r} is missing",
                (),
                next_move=f"add `{key}:`, or `attach:` to measure a server that is running",
            )
    if values.get("engine") == "reference":
        values.setdefault("kv_budget", "engine")


def _check_flag_names(values: Mapping[str, Any], spot: _Spot) -> None:
    """Refuse flags and environment variables one by one, so that the fault has its own line."""
    variants = values.get("variants")
    places: list[tuple[KeyPath, Any]] = [(("server",), values.get("server"))]
    places += [(("env",), values.get("env"))]
    if isinstance(variants, dict):
        for name, given in variants.items():
            flags = given if isinstance(given, dict) else {}
            places.append((("variants", name), _flags_only(flags)))
            places.append((("variants", name, "env"), flags.get("env")))
    for path, mapping in places:
        check = check_env if path[-1] == "env" else check_flags
        for key in mapping if isinstance(mapping, dict) else ():
            try:
                check({str(key): mapping[key]})
            except ValueError as error:
                raise spot.fail(str(error), (*path, str(key))) from None
            if path[-1] == "env":
                _check_rule(str(key), mapping[key], path, spot)
            else:
                _check_known_flag(values, str(key), mapping[key], path, spot)


def _check_known_flag(
    values: Mapping[str, Any], name: str, value: Any, path: KeyPath, spot: _Spot
) -> None:
    """Hold a flag against the pinned engine's; the reference engine has flags of its own."""
    if values.get("engine", "vllm") != "vllm" or values.get("attach") is not None:
        return
    listed = values.get(UNCHECKED)
    unchecked = [str(one) for one in listed] if isinstance(listed, list) else []
    fault = flag_fault(name, value, unchecked)
    if fault is not None:
        raise spot.fail(
            fault.what, (*path, name), legal=fault.legal, next_move=fault.next_move or None
        )


def _check_rule(name: str, value: Any, path: KeyPath, spot: _Spot) -> None:
    """Read an eviction rule where it is written, not when its server starts."""
    if name != EVICTION_VARIABLE or not value:
        return
    try:
        parse_rule(str(value))
    except InputError as error:
        raise spot.fail(
            error.what, (*path, name), legal=error.legal, next_move=error.next_move
        ) from None


def _flags_only(given: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in given.items() if key not in VARIANT_KEYS}


def _check_attach(values: dict[str, Any], spot: _Spot) -> None:
    for key in ("server", "env"):
        if values.get(key):
            raise spot.fail(
                f"{key!r} configures a server that is launched; with `attach` none is",
                (key,),
                next_move=f"leave out either `attach` or `{key}`",
            )
    fault = address_fault(values["attach"], "server", "OPENAI_API_KEY")
    if fault is not None:
        raise spot.fail(fault.what, ("attach",), legal=fault.legal, next_move=fault.next_move)


def _expand_workloads(given: Any, spot: _Spot) -> tuple[list[dict[str, Any]], list[int]]:
    """Cross the lists inside each workload; also which entry of the file each came from."""
    if not isinstance(given, list) or not given:
        raise spot.fail(
            "workloads is a list with at least one entry",
            ("workloads",),
            legal=list(Workload.model_fields),
        )
    expanded: list[dict[str, Any]] = []
    origins: list[int] = []
    for index, entry in enumerate(given):
        if not isinstance(entry, dict):
            raise spot.fail(
                "a workload is a mapping", ("workloads", index), legal=list(Workload.model_fields)
            )
        points = _matrix(entry, index, spot, MAX_TRIALS - len(expanded))
        expanded.extend(points)
        origins.extend([index] * len(points))
    return expanded, origins


def _matrix(entry: dict[str, Any], index: int, spot: _Spot, room: int) -> list[dict[str, Any]]:
    """The crossed lists of one entry; counted before they are built, since lists multiply."""
    axes = [key for key in MATRIX_KEYS if isinstance(entry.get(key), list)]
    for key in axes:
        if not entry[key]:
            raise spot.fail("an empty list gives no trial", ("workloads", index, key))
    count = math.prod(len(entry[key]) for key in axes)
    if count > room:
        crossed = " × ".join(f"{len(entry[key]):,} of {key}" for key in axes)
        raise spot.fail(
            f"more than {MAX_TRIALS:,} workloads: {crossed or 'one'} would be {count:,} more",
            ("workloads", index),
            legal=[f"at most {MAX_TRIALS:,} in all"],
            next_move="shorten the lists: each is crossed with every other",
        )
    combinations = itertools.product(*(entry[key] for key in axes))
    return [{**entry, **dict(zip(axes, values, strict=True))} for values in combinations]


def _validate(values: dict[str, Any], spot: _Spot, origins: Sequence[int]) -> Scenario:
    try:
        return Scenario.model_validate(values)
    except ValidationError as error:
        found = error.errors(include_url=False)
        first = told_first(found)
        path = _written_path(first["loc"], origins)
        wrong = str(path[-1]) if path else ""
        legal, hint = None, None
        if first["type"] == "extra_forbidden":
            legal = _legal_keys(path)
            hint = meant(wrong, legal, missing_beside(first, found))
        told = explain(first, _called(path))
        raise spot.fail(told, path, legal=legal, next_move=hint) from None


def _called(path: KeyPath) -> str:
    """What a sentence calls the place: its key, and for an entry of a list the list's."""
    *above, last = [str(part) for part in path] or [""]
    return f"entry {last} of {above[-1]}" if above and last.isdecimal() else last


#: Steps of pydantic's paths that nobody wrote.
_OF_PYDANTIC = ("function-", "list[", "dict[", "[key]")


def _written_path(loc: tuple[int | str, ...], origins: Sequence[int]) -> KeyPath:
    """The key path as the user wrote it, from pydantic's, which follows the models."""
    path = list(loc)
    if len(path) > 1 and path[0] == "workloads" and isinstance(path[1], int):
        path[1] = origins[path[1]]
    if len(path) > 2 and path[0] == "variants" and path[2] == "flags":
        del path[2]
    if path[:1] == ["kv_budget"]:
        path = ["kv_budget"]
    return tuple(part for part in path if not str(part).startswith(_OF_PYDANTIC))


def _legal_keys(path: KeyPath) -> Sequence[str]:
    nested: dict[KeyPath, type[Strict]] = {
        ("workloads",): Workload,
        ("timeouts",): Timeouts,
        ("slo",): Slo,
        ("quality",): Quality,
        ("quality", "judge"): Judge,
        ("quality", "needles"): Needles,
    }
    found = nested.get(path[:2]) if len(path) > 2 else None
    model = LengthMix if "length_mix" in path[:-1] else found or nested.get(path[:1])
    return list(model.model_fields) if model is not None and len(path) > 1 else PROFILE_KEYS


def _check_scenario(scenario: Scenario, spot: _Spot, origins: Sequence[int]) -> None:
    _check_count(scenario, spot)
    if scenario.baseline not in scenario.variants:
        raise spot.fail(
            f"the baseline {scenario.baseline!r} is no variant",
            ("baseline",),
            legal=list(scenario.variants),
            next_move=did_you_mean(scenario.baseline, scenario.variants),
        )
    _check_kvpress(scenario, spot)
    _check_variant_names(scenario, spot)
    _check_budget(scenario, spot)
    _check_distinct_workloads(scenario, spot, origins)
    _check_lengths(scenario, spot, origins)
    _check_quality(scenario, spot)
    _check_reference(scenario, spot, origins)


def _check_count(scenario: Scenario, spot: _Spot) -> None:
    """Refuse more trials than any bench, and any plan of one, comes to an end with."""
    sizes = {
        "workloads": len(scenario.workloads),
        "variants": len(scenario.variants),
        "repeats": scenario.repeats,
    }
    count = math.prod(sizes.values())
    if count > MAX_TRIALS:
        told = " × ".join(f"{size:,} {key}" for key, size in sizes.items())
        raise spot.fail(
            f"{told} are {count:,} trials",
            (max(sizes, key=lambda key: sizes[key]),),
            legal=[f"at most {MAX_TRIALS:,} trials"],
            next_move="measure less at a time; the largest of the three is the one to cut",
        )


def _check_kvpress(scenario: Scenario, spot: _Spot) -> None:
    pressed = [name for name in scenario.variants if name not in scenario.served]
    for name in pressed:
        if name == scenario.baseline or scenario.engine != "vllm" or scenario.attach is not None:
            raise spot.fail(
                "kvpress is measured beside servers that kvbench launches; it is no baseline of "
                "its own",
                ("variants", name, "kvpress"),
                next_move="make a variant of vLLM the baseline (`kvpress: {press: none}` can "
                "stand beside it)",
            )


def _check_reference(scenario: Scenario, spot: _Spot, origins: Sequence[int]) -> None:
    if scenario.engine != "reference":
        return
    for fault, path, legal in reference_faults(scenario):
        raise spot.fail(fault, _written_path(path, origins), legal=legal)


def _check_judge(quality: Quality, spot: _Spot) -> None:
    """A named judge is asked when all is measured, which is too late for a URL that is none."""
    url = quality.judge.url if quality.judge is not None else None
    fault = address_fault(url, "judge", JUDGE_KEY_VARIABLE) if url is not None else None
    if fault is not None:
        path = ("quality", "judge", "url")
        raise spot.fail(fault.what, path, legal=fault.legal, next_move=fault.next_move)


def _check_quality(scenario: Scenario, spot: _Spot) -> None:
    """Refuse questions that no server of the scenario can take."""
    quality = scenario.quality
    if quality is None:
        return
    _check_judge(quality, spot)
    asked = quality.context_tokens or scenario.workloads[0].context_tokens
    needles = quality.needles.context_tokens if quality.needles is not None else ()
    longest = max(asked + quality.answer_tokens, *(n + NEEDLE_ANSWER_TOKENS for n in needles), 0)
    for name in scenario.variants:
        flags = scenario.flags_of(name)
        limit = flags.get("max_model_len")
        if isinstance(limit, int) and not isinstance(limit, bool) and longest > limit:
            raise spot.fail(
                f"a question of quality with its answer takes {longest} tokens and does not fit "
                f"max_model_len {limit} of variant {name!r}",
                ("quality",),
                next_move="shorten context_tokens, answer_tokens or needles of "
                f"{spot.key('quality')}",
            )
        if name == scenario.baseline and flags.get("load_format") == "dummy":
            raise spot.fail(
                "the baseline's weights are random (load_format: dummy): its text means nothing",
                ("quality",),
                next_move="leave `quality` out",
            )


def _check_variant_names(scenario: Scenario, spot: _Spot) -> None:
    seen: dict[str, str] = {}
    for name in scenario.variants:
        slug = slugify(name)
        if slug in seen:
            raise spot.fail(
                f"the variants {seen[slug]!r} and {name!r} would share the folder name {slug!r}",
                ("variants", name),
                next_move="rename one of them",
            )
        seen[slug] = name


def _check_budget(scenario: Scenario, spot: _Spot) -> None:
    for name, variant in scenario.variants.items():
        for flag in POOL_FLAGS:
            if flag in variant.flags and scenario.kv_budget.mode != "engine":
                raise spot.fail(
                    f"{flag} of one variant contradicts kv_budget {scenario.kv_budget.mode}, "
                    "which gives every variant its pool",
                    ("variants", name, flag),
                    next_move="state the size as kv_budget, or set `kv_budget: engine`",
                )


def _check_distinct_workloads(scenario: Scenario, spot: _Spot, origins: Sequence[int]) -> None:
    seen: dict[Workload, int] = {}
    for index, workload in enumerate(scenario.workloads):
        bare = workload.model_copy(update={"name": None})
        if bare in seen:
            raise spot.fail(
                f"this workload ({workload.label}) is the same as that of workloads."
                f"{origins[seen[bare]]}",
                ("workloads", origins[index]),
                next_move="remove one, or change a number; `repeats` is the way to measure again",
            )
        seen[bare] = index


def _check_lengths(scenario: Scenario, spot: _Spot, origins: Sequence[int]) -> None:
    for name in scenario.variants:
        limit = scenario.flags_of(name).get("max_model_len")
        if not isinstance(limit, int) or isinstance(limit, bool):
            continue
        for index, workload in enumerate(scenario.workloads):
            if workload.total_tokens > limit:
                raise spot.fail(
                    f"a request of {workload.context_tokens} + {workload.output_tokens} = "
                    f"{workload.total_tokens} tokens does not fit max_model_len {limit} of "
                    f"variant {name!r}",
                    ("workloads", origins[index]),
                    next_move=f"raise {spot.key('server.max_model_len')}, or give requests that "
                    f"fit as {spot.key('workloads')}",
                )


def slugify(text: str) -> str:
    """A name that is safe as a folder: ``FP8 (e4m3)`` → ``fp8-e4m3``."""
    safe = "".join(c if c.isascii() and (c.isalnum() or c in "._") else "-" for c in text.lower())
    parts = [part.strip(".") for part in safe.split("-")]
    return "-".join(part for part in parts if part)[:60].rstrip("-.") or "unnamed"


__all__ = ["ATTACHED_VARIANT", "Fault", "dotted", "load_scenario", "slugify"]
