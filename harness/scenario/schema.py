"""What may stand in a scenario: strict pydantic models, one per level of the file.

Unknown keys and values of the wrong type are errors. vLLM's own flags are not listed here
(``flags`` holds them against the pinned engine's); those that kvbench sets itself are refused.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    field_validator,
    model_validator,
)

from harness.specs.fields import MOST_DRAFTS
from harness.units import Bytes, Tokens, parse_bytes, parse_tokens

PROFILES = ("cpu", "cuda")

#: Flags that kvbench decides for every server it launches, and why a scenario can't.
RESERVED_FLAGS = {
    "host": "servers are bound to 127.0.0.1",
    "port": "a free port is chosen at each start",
    "model": "the key `model` of the scenario names it",
    "served_model_name": "kvbench names the served model itself",
    "api_key": "keys are never stored; a launched server listens on 127.0.0.1 only",
    "uds": "the client speaks to a TCP port",
    "ssl_keyfile": "the client speaks plain HTTP on 127.0.0.1",
    "ssl_certfile": "the client speaks plain HTTP on 127.0.0.1",
}
_SECRET_NAME = re.compile(
    r"TOKEN|KEY|SECRET|PASSW|PASSPHRASE|CREDENTIAL|AUTH(?!ORS?(_|$))|COOKIE|BEARER", re.IGNORECASE
)
#: Words that a secret follows.
_BEFORE = r"(key|token|secret|passw(or)?d|passphrase|credentials?|auth(orization)?|sig(nature)?)"
_SECRET_FIELD = re.compile(rf"{_BEFORE}=", re.IGNORECASE)
#: A secret by the word before it, or by how the usual ones begin.
_SECRET_VALUE = re.compile(
    rf"{_BEFORE}[\"']?\s{{0,9}}[=:]|\bbearer\s|\b(sk-|hf_)\w{{8}}", re.IGNORECASE
)
#: Flags that are one by their name, among which `max_num_batched_tokens` is none.
_SECRET_FLAG = re.compile(
    r"(^|[_.-])(api_?key|access_?key|token|secret|passw(or)?d|credentials?)$", re.IGNORECASE
)
#: Flags that kvbench reads, too (the KV theory rests on them), and what they have to be.
_WHOLE_FLAGS = (
    "block_size",
    "max_model_len",
    "max_num_batched_tokens",
    "max_num_seqs",
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "decode_context_parallel_size",
    "num_gpu_blocks_override",
    "kv_cache_memory_bytes",
)
_TEXT_FLAGS = (
    "kv_cache_dtype",
    "dtype",
    "quantization",
    "load_format",
    "mamba_cache_dtype",
    "mamba_ssm_cache_dtype",
)
_SWITCH_FLAGS = ("enable_prefix_caching", "disable_hybrid_kv_cache_manager", "async_scheduling")
_MAPPING_FLAGS = ("hf_overrides", "speculative_config")
_FLAG_NAME = re.compile(r"[a-z][a-z0-9_]*(\.[a-z0-9_]+)*")

FlagValue = bool | int | float | str | list[Any] | dict[str, Any] | None
Flags = dict[str, FlagValue]


def _tokens(value: Any) -> Any:
    return parse_tokens(value) if isinstance(value, str) else value


def _bytes(value: Any) -> Any:
    return parse_bytes(value) if isinstance(value, str) else value


TokenCount = Annotated[int, BeforeValidator(_tokens), Field(ge=1, le=100_000_000)]
ByteCount = Annotated[int, BeforeValidator(_bytes), Field(ge=1, le=1 << 60)]


class Strict(BaseModel):
    """Values must have the right type; unknown keys are refused; nothing changes later."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


def _number(value: Any) -> Any:
    # In YAML `1` is an integer; where a duration or a rate is meant it is as good as 1.0.
    return float(value) if isinstance(value, int) and not isinstance(value, bool) else value


#: From a microsecond to thirty years; beyond, sums and exponentials of it would overflow.
Positive = Annotated[float, BeforeValidator(_number), Field(ge=1e-6, le=1e9, allow_inf_nan=False)]


class LengthMix(Strict):
    """Lengths of a long-tailed mix: log-normal around a median, cut at the workload's lengths.

    ``sigma`` is the standard deviation of the logarithm: at 1.0 one request in six is longer
    than 2.7 medians. Without ``output_median`` every output has the workload's length.
    """

    context_median: TokenCount
    output_median: TokenCount | None = None
    sigma: Annotated[Positive, Field(le=10.0)] = 1.0


class Workload(Strict):
    """One load: prompts of exact lengths, played in a closed or in an open loop.

    ``context_tokens`` is the prompt's length; ``output_tokens`` is pinned (``ignore_eos``). Where
    requests differ in length (``length_mix``, ``turns``) these are those of the longest one.
    Exactly one of ``concurrency`` (closed loop) and ``request_rate`` (requests/s, open loop) is
    given; ``burstiness`` is the gamma shape of the arrival gaps, 1 being Poisson.

    ``shared_prefix_tokens``: so many first tokens are the same in all prompts, warm-ups included.
    ``turns``: the requests are ``num_prompts / turns`` conversations that return; each turn's
    prompt is the one before and as many tokens again, and all conversations take a turn before
    any takes the next.
    """

    name: Annotated[Name | None, Field()] = None
    context_tokens: TokenCount
    output_tokens: TokenCount
    num_prompts: Annotated[int, Field(ge=1, le=10_000_000)]
    concurrency: Annotated[int, Field(ge=1, le=100_000)] | None = None
    request_rate: Positive | None = None
    burstiness: Positive = 1.0
    warmup_requests: Annotated[int, Field(ge=0, le=10_000)] = 2
    length_mix: LengthMix | None = None
    shared_prefix_tokens: Annotated[TokenCount | None, Field()] = None
    turns: Annotated[int, Field(ge=2, le=1000)] | None = None

    @model_validator(mode="after")
    def _one_loop(self) -> Self:
        if (self.concurrency is None) == (self.request_rate is None):
            raise ValueError("give exactly one of concurrency (closed loop), request_rate (open)")
        if self.request_rate is None and "burstiness" in self.model_fields_set:
            raise ValueError("burstiness shapes the arrivals of an open loop: give request_rate")
        return self

    @model_validator(mode="after")
    def _one_shape(self) -> Self:
        given = [key for key in SHAPES if getattr(self, key) is not None]
        if len(given) > 1:
            raise ValueError(f"{' and '.join(given)} can't be combined: give one of them")
        shared, turns = self.shared_prefix_tokens, self.turns
        if shared is not None and shared >= self.context_tokens:
            raise ValueError(
                f"shared_prefix_tokens is {shared}, and prompts have {self.context_tokens} tokens: "
                f"at most {self.context_tokens - 1} can be shared, so that each has a part of its "
                "own"
            )
        if turns is not None and self.num_prompts % turns:
            raise ValueError(f"num_prompts must be a multiple of turns ({turns})")
        if turns is not None and turns > self.context_tokens:
            raise ValueError("context_tokens must hold at least one token per turn")
        if self.length_mix is not None:
            _check_medians(self.length_mix, self.context_tokens, self.output_tokens)
        return self

    @property
    def total_tokens(self) -> Tokens:
        """Prompt plus output tokens of the longest request."""
        return self.context_tokens + self.output_tokens

    @property
    def label(self) -> str:
        """A short readable name (:func:`workload_label`)."""
        return workload_label(self.model_dump())


#: Keys that make the requests of a workload differ from one another; one at most is given.
SHAPES = ("length_mix", "shared_prefix_tokens", "turns")


def _check_medians(mix: LengthMix, context: Tokens, output: Tokens) -> None:
    if mix.context_median > context or (mix.output_median or 0) > output:
        raise ValueError(
            "a median of length_mix lies above the longest length, which is context_tokens "
            "(output_tokens)"
        )


def shape_label(workload: Mapping[str, Any]) -> str:
    """How requests differ, such as ``, 1000 shared``; empty where they are all alike."""
    mix, shared, turns = (workload.get(key) for key in SHAPES)
    if mix:
        return f", mixed (median {mix['context_median']})"
    if shared:
        return f", {shared} shared"
    return f", {turns} turns" if turns else ""


def workload_label(workload: Mapping[str, Any]) -> str:
    """A workload's readable name, such as ``exercise: 512+16 tokens × 50, concurrency 4``."""
    rate = workload.get("request_rate")
    loop = f"concurrency {workload.get('concurrency')}" if rate is None else f"{rate:g} req/s"
    prompt, output = workload.get("context_tokens"), workload.get("output_tokens")
    text = f"{prompt}+{output} tokens × {workload.get('num_prompts')}, {loop}"
    text += shape_label(workload)
    return f"{workload['name']}: {text}" if workload.get("name") else text


#: Keys of a workload that may be a list; lists are crossed with one another.
MATRIX_KEYS = (
    "context_tokens",
    "output_tokens",
    "num_prompts",
    "concurrency",
    "request_rate",
    "burstiness",
    "shared_prefix_tokens",
)


class Slo(Strict):
    """Service-level objectives; a request that meets all that are given counts as goodput."""

    ttft_s: Positive | None = None
    tpot_s: Positive | None = None
    e2el_s: Positive | None = None


class KvBudget(Strict):
    """How the variants' KV pools are made comparable.

    ``equal_bytes``: every variant gets the same pool in bytes (those given, else those granted
    to the baseline). ``equal_tokens``: likewise in tokens. ``engine``: whatever each is granted.
    """

    mode: Literal["equal_bytes", "equal_tokens", "engine"] = "equal_bytes"
    value_bytes: ByteCount | None = None
    value_tokens: TokenCount | None = None

    @model_validator(mode="before")
    @classmethod
    def _from_short_form(cls, given: Any) -> Any:
        if isinstance(given, str):
            return {"mode": given}
        if isinstance(given, KvBudget):
            return given
        if isinstance(given, dict) and len(given) == 1:
            (mode, value), *_ = given.items()
            if mode == "equal_bytes":
                return {"mode": mode, "value_bytes": value}
            if mode == "equal_tokens":
                return {"mode": mode, "value_tokens": value}
        if isinstance(given, dict) and (not given or "mode" in given):
            return given
        raise ValueError(
            "write equal_bytes, equal_tokens or engine, or a size such as {equal_bytes: 120MB} "
            "or {equal_tokens: 5120}"
        )


class Timeouts(Strict):
    """How long to wait before a server start or a request is given up."""

    startup_s: Positive = 900.0
    request_s: Positive = 900.0


def check_flags(flags: Flags) -> Flags:
    """Refuse flags that kvbench sets itself, and names that no flag can have."""
    for name in flags:
        flag = name.replace("-", "_")
        if flag in RESERVED_FLAGS:
            raise ValueError(f"{name!r} can't be set in a scenario: {RESERVED_FLAGS[flag]}")
        if "-" in name or name.startswith("_") or not _FLAG_NAME.fullmatch(name):
            raise ValueError(
                f"{name!r} is no vLLM flag in snake case (--kv-cache-dtype is kv_cache_dtype)"
            )
        if (secret := _secret_in(name, flags[name])) is not None:
            raise ValueError(
                f"{secret!r} looks like a secret, and flags are stored with the results: export "
                "it in your shell instead (HF_TOKEN is handed on to the server)"
            )
        _check_flag_type(flag, flags[name])
    return flags


def _secret_in(name: str, value: Any) -> str | None:
    """The name of the flag, or of a key inside its value, that is a secret's or holds one."""
    if _SECRET_FLAG.search(name) or (isinstance(value, str) and _in_address(value)):
        return name
    if isinstance(value, list | tuple):
        return next((name for item in value if _secret_in(name, item) is not None), None)
    inside = value.items() if isinstance(value, dict) else ()
    found = (_secret_in(str(key), item) for key, item in inside)
    return next((secret for secret in found if secret is not None), None)


def _check_flag_type(name: str, value: Any) -> None:
    """The engine's parser judges flags when it starts; those that we read can't wait for that."""
    if value is None:
        return
    if name in _WHOLE_FLAGS and (not isinstance(value, int) or value is True or value < 1):
        raise ValueError(f"{name} is a whole number from 1 up (given: {value!r:.100})")
    for names, kind, what in (
        (_TEXT_FLAGS, str, "text"),
        (_SWITCH_FLAGS, bool, "true or false"),
        (_MAPPING_FLAGS, dict, "a mapping"),
    ):
        if name in names and not isinstance(value, kind):
            raise ValueError(f"{name} is {what} (given: {value!r:.100})")
    if name == "speculative_config":
        _check_drafts(value.get("num_speculative_tokens"))
    if name == "kv_cache_dtype_skip_layers" and isinstance(value, dict | bool | float):
        raise ValueError(f"{name} is a list of layers or names of kinds (given: {value!r:.100})")


def _check_drafts(value: Any) -> None:
    """Draft tokens per step, of which the pool's reserve and its groups are worked out."""
    whole = isinstance(value, int) and not isinstance(value, bool)
    if value is not None and not (whole and 1 <= value <= MOST_DRAFTS):
        raise ValueError(
            f"num_speculative_tokens is a whole number from 1 to {MOST_DRAFTS} "
            f"(given: {value!r:.100})"
        )


def holds_secret(name: str, value: object) -> bool:
    """Whether an environment variable must not be stored: by its name, or by what it says."""
    text = str(value)
    return bool(_SECRET_NAME.search(name) or _SECRET_VALUE.search(text)) or _in_address(text)


def _in_address(text: str) -> bool:
    """Whether an address in a text has a name or a secret in it."""
    addresses = (rest for word in text.split() for rest in word.split("://")[1:])
    return any(
        "@" in rest.partition("/")[0] or _SECRET_FIELD.search(rest) is not None
        for rest in addresses
    )


def check_env(env: dict[str, str]) -> dict[str, str]:
    """Refuse secrets: what stands in a scenario is stored with the results."""
    for name in env:
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            raise ValueError(f"{name!r} is no name of an environment variable")
        if holds_secret(name, env[name]):
            raise ValueError(f"{name!r} looks like a secret: export it in your shell instead")
    return env


def _env_text(value: Any) -> Any:
    # YAML reads 1 and true as numbers and booleans; the environment holds text.
    if isinstance(value, dict):
        return {
            key: str(item) if isinstance(item, int | float) and not isinstance(item, bool) else item
            for key, item in value.items()
        }
    return value


ServerFlags = Annotated[Flags, Field(default_factory=dict)]
ServerEnv = Annotated[dict[str, str], BeforeValidator(_env_text), Field(default_factory=dict)]


class Judge(Strict):
    """Who compares answers: ``self`` (the baseline's own server) or a server of your choice.

    ``url`` and ``model`` go together; the key comes from the environment. ``margin`` is the net
    loss (losses − wins, as a share of the pairs) up to which a variant counts as non-inferior.
    """

    url: str | None = Field(default=None, min_length=1, max_length=2000)
    model: str | None = Field(default=None, min_length=1, max_length=500)
    margin: Annotated[float, Field(gt=0, lt=1)] = 0.10

    @model_validator(mode="after")
    def _both_or_neither(self) -> Self:
        if (self.url is None) != (self.model is None):
            raise ValueError("a judge needs both url and model; leave both out for the baseline")
        return self


def _judge(value: Any) -> Any:
    if value is True or value == "self":
        return {}
    return None if value is False or value == "off" else value


class Needles(Strict):
    """The grid of needle-in-a-haystack questions; each cell gets a single and a multi-key one."""

    context_tokens: tuple[TokenCount, ...] = Field(strict=False, min_length=1, max_length=20)
    depths: tuple[Annotated[float, BeforeValidator(_number), Field(ge=0, le=1)], ...] = Field(
        default=(0.0, 0.25, 0.5, 0.75, 1.0), strict=False, min_length=1, max_length=20
    )
    per_cell: Annotated[int, Field(ge=1, le=100)] = 1


class Quality(Strict):
    """What is asked to see whether a strategy changes the answers; ``quality: on`` takes all this.

    ``context_tokens`` is the exact length of every prompt (None: the first workload's);
    ``answer_tokens`` the longest answer. ``prompts`` and ``haystack`` are files of your own.
    """

    num_prompts: Annotated[int, Field(ge=1, le=10_000)] = 50
    context_tokens: TokenCount | None = None
    answer_tokens: Annotated[TokenCount, Field(ge=8)] = 128
    needles: Needles | None = None
    prompts: str | None = Field(default=None, min_length=1)
    haystack: str | None = Field(default=None, min_length=1)
    judge: Annotated[Judge | None, BeforeValidator(_judge)] = Judge()


def _quality(value: Any) -> Any:
    if value is True or value == "on":
        return {}
    return None if value is False or value == "off" else value


#: Keys of a variant that are kvbench's own; every other key is a vLLM flag.
VARIANT_KEYS = ("env", "emulate", "model", "kvpress")


class Kvpress(Strict):
    """A policy of NVIDIA's kvpress at one compression ratio: ``none`` compresses nothing.

    ``compression_ratio`` is the share of a prefill's keys and values that is dropped.
    """

    press: Literal[
        "none",
        "streaming_llm",
        "snapkv",
        "expected_attention",
        "observed_attention",
        "knorm",
    ]
    compression_ratio: Annotated[float, BeforeValidator(_number), Field(ge=0, lt=1)] = 0.0

    @model_validator(mode="after")
    def _ratio_fits(self) -> Self:
        if (self.press == "none") != (self.compression_ratio == 0):
            raise ValueError("compression_ratio is above 0 for a policy, and left out for none")
        return self


def tail_start(prompt_tokens: Tokens) -> Tokens:
    """Where the tail of a quality prompt begins: its last quarter.

    kvpress compresses what lies before; servers that evict as they go have long done so there.
    """
    return prompt_tokens - prompt_tokens // 4


class Variant(Strict):
    """One strategy: the server flags (and environment) by which it differs from the others.

    ``emulate: preallocation`` lets in no more requests at once (``max_num_seqs``) than the pool
    could hold if each reserved ``max_model_len`` tokens; its figures are stamped ``emulated``.
    ``model`` names another checkpoint of the same model, such as one with calibrated KV scales.
    ``kvpress`` makes it no server at all: the policy is measured on transformers (cache bytes and
    perplexity), never beside the servers' speed.
    """

    flags: ServerFlags
    env: ServerEnv
    emulate: Literal["preallocation"] | None = None
    model: str | None = Field(default=None, min_length=1, max_length=500)
    kvpress: Kvpress | None = None

    @model_validator(mode="before")
    @classmethod
    def _split_env(cls, given: Any) -> Any:
        if given is None:
            given = {}
        if not isinstance(given, dict):
            raise ValueError("a variant is a mapping of vLLM flags, such as {kv_cache_dtype: fp8}")
        own = {key: given[key] for key in VARIANT_KEYS if key in given}
        return {
            "flags": {key: value for key, value in given.items() if key not in VARIANT_KEYS},
            "env": {},
            **own,
        }

    @model_validator(mode="after")
    def _cap_is_emulated(self) -> Self:
        if self.emulate is not None and "max_num_seqs" in self.flags:
            raise ValueError("emulate: preallocation works out max_num_seqs itself: leave it out")
        return self

    @model_validator(mode="after")
    def _kvpress_stands_alone(self) -> Self:
        if self.kvpress is not None and (self.flags or self.env or self.emulate or self.model):
            raise ValueError("kvpress runs on transformers: no flag, env, emulate or model with it")
        return self

    @property
    def stamp(self) -> Literal["measured", "emulated"]:
        """What the variant's figures are."""
        return "measured" if self.emulate is None else "emulated"

    _flags_are_legal = field_validator("flags")(check_flags)
    _env_is_legal = field_validator("env")(check_env)


def _one_line(name: str) -> str:
    # Unicode has line ends and blanks of its own; text that prints nothing is no name either.
    blank = not any(c.isprintable() and not c.isspace() for c in name)
    if blank or "\t" in name or name.splitlines() != [name]:
        raise ValueError(f"a name is one line of text, and not a blank one (given: {name!r})")
    return name


Name = Annotated[str, Field(max_length=100), AfterValidator(_one_line)]


def stored_settings(
    scenario: Mapping[str, Any], variant: str
) -> tuple[dict[str, Any], dict[str, str]]:
    """A variant's flags and environment as a stored scenario has them (``flags_of``, ``env_of``).

    What is missing or no table, as in a record that was edited, sets nothing.
    """
    own = _table(_table(scenario.get("variants")).get(variant))
    flags = {**_table(scenario.get("server")), **_table(own.get("flags"))}
    env = {**_table(scenario.get("env")), **_table(own.get("env"))}
    return flags, {str(name): str(value) for name, value in env.items()}


def _table(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


class Scenario(Strict):
    """A scenario resolved for one profile: everything that decides which trials are run.

    ``workloads`` are already expanded (no lists inside) and differ from one another.
    ``unchecked_flags`` are passed to the engine though the pinned one does not know them.
    """

    schema_: Literal[1] = Field(alias="schema")
    name: Name
    question: str = Field(default="", max_length=1000)
    claims: tuple[Annotated[str, Field(pattern=r"^C([1-9]|1[0-5])$")], ...] = Field(
        default=(), strict=False
    )
    profile: Literal["cpu", "cuda"]
    engine: Literal["vllm", "reference"] = "vllm"
    model: str | None = Field(default=None, min_length=1, max_length=500)
    attach: str | None = Field(default=None, max_length=2000)
    baseline: str
    server: ServerFlags
    unchecked_flags: tuple[Annotated[str, Field(max_length=200)], ...] = Field(
        default=(), strict=False, max_length=100
    )
    env: ServerEnv
    variants: dict[Name, Variant] = Field(min_length=1)
    kv_budget: KvBudget = KvBudget()
    workloads: tuple[Workload, ...] = Field(strict=False, min_length=1)
    repeats: Annotated[int, Field(ge=1, le=1000)] = 3
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    slo: Slo = Slo()
    timeouts: Timeouts = Timeouts()
    quality: Annotated[Quality | None, BeforeValidator(_quality)] = None

    _flags_are_legal = field_validator("server")(check_flags)
    _env_is_legal = field_validator("env")(check_env)

    @property
    def served(self) -> tuple[str, ...]:
        """The variants that a server is asked about: all but those of kvpress."""
        return tuple(name for name, each in self.variants.items() if each.kvpress is None)

    def flags_of(self, variant: str) -> Flags:
        """The flags of a variant's server: its own over those of all."""
        own = self.variants.get(variant)
        return {**self.server, **(own.flags if own is not None else {})}

    def env_of(self, variant: str) -> dict[str, str]:
        """The environment of a variant's server: its own over that of all."""
        own = self.variants.get(variant)
        return {**self.env, **(own.env if own is not None else {})}

    @property
    def kv_budget_bytes(self) -> Bytes | None:
        """The pool stated in bytes, if the scenario states one."""
        return self.kv_budget.value_bytes
