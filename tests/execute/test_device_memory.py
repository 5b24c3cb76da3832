"""What GPUs hold around a start: read as the trial's server sees them, waited for at its end."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

import pytest

from harness import machine
from harness.execute import device_memory
from harness.execute.device_memory import DeviceMemory
from harness.execute.progress import Silent
from harness.record import GpuFacts
from harness.scenario import Trial
from harness.telemetry import nvml
from tests.execute.test_strategies import trial_of

CARD = GpuFacts(index=0, name="a card", total_bytes=80 << 30, driver=None)


@dataclass
class Told(Silent):
    warnings: list[str] = field(default_factory=list)

    def warn(self, text: str) -> None:
        self.warnings.append(text)


@pytest.fixture
def trial() -> Trial:
    return trial_of("paged_vs_preallocated", "paged")


def memory(*cards: GpuFacts) -> tuple[DeviceMemory, Told]:
    told = Told()
    return DeviceMemory(dataclasses.replace(machine.describe("cpu"), gpus=cards), told), told


def test_without_a_gpu_nothing_is_read_and_nothing_awaited(
    trial: Trial, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(**_: Any) -> int:
        raise AssertionError("there is no device to read")

    monkeypatch.setattr(nvml, "device_used_bytes", never)
    none, _ = memory()
    assert (none.used(trial), none.used_before_start(trial), none.await_back(trial)) == (
        None,
        None,
        0.0,
    )


def test_only_the_devices_that_the_server_sees_are_read(
    trial: Trial, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nvml, "device_used_bytes", lambda visible: {"1": 7, None: 8}[visible])
    one, _ = memory(CARD)
    seen = dataclasses.replace(trial, env={"CUDA_VISIBLE_DEVICES": "1"})
    assert (one.used(seen), one.used(trial)) == (7, 8)


def test_the_first_reading_of_a_run_says_what_clean_is(
    trial: Trial, monkeypatch: pytest.MonkeyPatch
) -> None:
    readings = iter([1 << 30, 9 << 30, 9 << 30, (1 << 30) + (256 << 20)])
    monkeypatch.setattr(nvml, "device_used_bytes", lambda **_: next(readings))
    one, told = memory(CARD)
    assert one.used_before_start(trial) == 1 << 30
    # A later start from a full device does not make full the measure.
    assert one.used_before_start(trial) == 9 << 30
    # 9 GiB, then 256 MiB more than at first, which is within the tolerance.
    assert one.await_back(trial) >= 0.5
    assert next(readings, None) is None
    assert told.warnings == []


def test_a_device_that_stays_full_is_told_and_the_run_goes_on(
    trial: Trial, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_memory, "MEMORY_BACK_LIMIT_S", 0.1)
    readings = iter([1 << 30, 9 << 30, 9 << 30])
    monkeypatch.setattr(nvml, "device_used_bytes", lambda **_: next(readings))
    one, told = memory(CARD)
    one.used_before_start(trial)
    assert one.await_back(trial) > 0.1
    (warning,) = told.warnings
    assert warning.startswith("the engine is gone but the GPU still holds 9.00 GiB; the next start")
