"""Values that records are made of: what a trial is, what a server was told and granted."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness.engines import server_log, vllm
from harness.engines.models import ResolvedModel
from harness.overlay import overlay
from harness.record import GrantedKv, ServerFacts, TrialFacts
from harness.scenario import Scenario, Trial
from harness.shell import relative_to_here, with_tilde
from harness.telemetry.engine import read_granted
from harness.telemetry.process import tree_rss_bytes, worker_bytes
from harness.units import Bytes, Seconds

#: What stands for the model of an attached server that never answered.
UNKNOWN_MODEL = "(whatever the attached server serves)"
_LOG_BYTES = 4 << 20
#: Asked once, right after a start, when a machine may still be busy; what isn't heard is unknown.
_GRANTED_S: Seconds = 10.0


def trial_facts(
    trial: Trial,
    scenario: Scenario,
    model: ResolvedModel | None,
    budget_flags: Mapping[str, Any],
    server: ServerFacts | None = None,
) -> TrialFacts:
    """The trial in plain values; ``server_flags`` are those it was in fact given.

    ``server`` is the one it is played against. One that was attached to says itself what it
    serves; what the scenario's model is known to be holds for it only under the same name.
    """
    served = trial.model
    if trial.attach is not None:
        served = server.served_model if server is not None else None
    known = model.config if model is not None and served == trial.model else None
    return TrialFacts(
        trial_id=trial.trial_id,
        scenario=trial.scenario,
        variant=trial.variant,
        is_baseline=trial.is_baseline,
        repeat=trial.repeat,
        launch=trial.launch,
        model=served or UNKNOWN_MODEL,
        server_flags={**trial.flags, **budget_flags},
        workload={**trial.workload.model_dump(), "label": trial.workload.label},
        seed=trial.seed,
        kv_budget=trial.kv_budget.model_dump(),
        slo=scenario.slo.model_dump(exclude_none=True),
        model_config=effective_config(known, trial.flags),
        stamp=trial.stamp,
        engine=trial.engine,
    )


def effective_config(
    config: Mapping[str, Any] | None, flags: Mapping[str, Any]
) -> dict[str, Any] | None:
    """The model's configuration with ``hf_overrides`` laid over it, as the engine sees it."""
    if config is None:
        return None
    overrides = flags.get("hf_overrides")
    return overlay(config, overrides) if isinstance(overrides, dict) else dict(config)


def server_facts(
    server: vllm.Server,
    *,
    engine_version: str | None,
    used_before: Bytes | None,
    used_loaded: Bytes | None,
) -> ServerFacts:
    """What a healthy server was started with, and what it reports of itself."""
    log = read_log(server.log_path)
    return ServerFacts(
        url=server.api_url,
        launched=True,
        command=tuple(with_tilde(relative_to_here(word)) for word in server.command),
        env=vllm.recorded_env(server.spec),
        served_model=vllm.SERVED_NAME,
        engine_version=engine_version,
        attention_backend=server_log.attention_backend(log),
        granted=read_granted(server.root_url, _GRANTED_S),
        startup_s=server.startup_s,
        cpu_binding=binding_text(log),
        device_used_before_bytes=used_before,
        device_used_loaded_bytes=used_loaded,
        rss_loaded_bytes=tree_rss_bytes(server.pid) if server.pid is not None else None,
        worker_before_weights_bytes=server.worker_before_weights_bytes,
        worker_loaded_bytes=worker_bytes(server.pid) if server.pid is not None else None,
        log_warnings=server_log.warnings(log),
        log_kv_lines=server_log.kv_lines(log),
    )


def binding_text(log: str) -> str | None:
    """``engine threads on cores 0; cores 1 left to the client``, from the engine's log."""
    cores = server_log.cpu_cores(log)
    if cores is None:
        return None
    own, reserved = (", ".join(str(core) for core in part) for part in cores)
    if not cores[1]:
        return f"engine threads on cores {own}; the client shares them"
    return f"engine threads on cores {own}; cores {reserved} left to the client"


def read_log(path: Path) -> str:
    """A server's log from its beginning, up to 4 MiB."""
    try:
        with path.open("rb") as stream:
            return stream.read(_LOG_BYTES).decode("utf-8", errors="replace")
    except OSError:
        return ""


def granted_text(granted: GrantedKv) -> str:
    """One line for people: the pool in tokens and blocks."""
    if granted.kv_cache_tokens is None:
        return "KV pool unknown"
    blocks = "" if granted.num_gpu_blocks is None else f" in {granted.num_gpu_blocks:,} blocks"
    return f"KV pool {granted.kv_cache_tokens:,} tokens{blocks}"
