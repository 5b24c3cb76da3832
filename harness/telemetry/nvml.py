"""NVIDIA devices through NVML: memory, our share of it, utilisation, power, and slow-downs.

Method: ``pynvml`` (nvidia-ml-py), imported when first needed, so that a machine without a driver
pays nothing. Every figure is asked for on its own and is None if NVML does not give it: one
missing figure never costs the others, and one lost device never costs its neighbours.

``used_bytes`` comes from ``nvmlDeviceGetMemoryInfo_v2``, which tells the driver's reserve apart
(``reserved_bytes``). Drivers without it count the reserve as used; ``reserved_bytes`` is then
None, which is how a reader knows. A device sticks to one of the two ways.

Which process holds what is known only where the process ids of NVML are those of this process. A
container sees the host's ids or none at all, and a MIG instance does not tell: both are unknown.

``utilization`` is the share of NVML's last sampling period (a sixth of a second to a second) in
which any kernel ran, and says nothing of how full the device was. ``power_w`` is an average over
a second on recent devices, so energy is better taken from ``energy_j``, the driver's own counter.

Devices are those of ``CUDA_VISIBLE_DEVICES``, by index, by UUID or its beginning, or a MIG UUID.
An index counts in PCI bus order, as NVML does; CUDA does so too if all devices are alike or
``CUDA_DEVICE_ORDER=PCI_BUS_ID``.

Not covered: clients of an MPS server (their memory is that of the server), unified-memory devices
whose driver gives no memory figure (unknown), and AMD or Intel devices.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import psutil

from harness.record import GpuFacts, GpuSample
from harness.telemetry.process import TREE_REFRESH_S
from harness.telemetry.source import Problems
from harness.units import Bytes, Seconds

Value = TypeVar("Value")
Handle = Any
Pids = Callable[[], frozenset[int]]

TENANTS_REFRESH_S: Seconds = 1.0

CLOCK_REASONS: Mapping[int, str] = {
    0x001: "gpu_idle",
    0x002: "applications_clocks_setting",
    0x004: "sw_power_cap",
    0x008: "hw_slowdown",
    0x010: "sync_boost",
    0x020: "sw_thermal_slowdown",
    0x040: "hw_thermal_slowdown",
    0x080: "hw_power_brake_slowdown",
    0x100: "display_clock_setting",
    0x200: "board_limit",
    0x400: "reliability",
}
"""Bits of NVML's clocks event (once: throttle) reasons → names. Source: nvml.h."""

# The inode of the first pid namespace is a constant of Linux (PROC_PID_INIT_INO).
_HOST_PID_NAMESPACE = 0xEFFFFFFC
_MEMORY_V2_MISSING = ("FunctionNotFound", "NotSupported", "ArgumentVersionMismatch")
_INIT_PROBLEMS = {
    "LibraryNotFound": "no NVIDIA driver library (libnvidia-ml.so.1) on this machine",
    "DriverNotLoaded": "the NVIDIA kernel driver is not loaded",
    "LibRmVersionMismatch": (
        "the NVIDIA driver library and the loaded kernel driver differ in version, as after an"
        " upgrade without a reboot; reboot or reload the driver"
    ),
    "NoPermission": "this user may not use the NVIDIA driver (device files, container rights)",
}
_NO_DEVICE = "the NVIDIA driver works but shows no device"


@dataclass(frozen=True, slots=True)
class NvmlProbe:
    """What NVML shows here: the visible devices, and why there are none or some are missing."""

    gpus: tuple[GpuFacts, ...] = ()
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class _Tenants:
    """Who holds memory on a device; None is unknown."""

    ours_bytes: Bytes | None = None
    others: int | None = None


@dataclass(slots=True)
class _Device:
    """One visible device; ``memory_v2`` turns False when its driver lacks that call."""

    index: int
    handle: Handle
    mig: bool | None
    memory_v2: bool = True
    tenants: _Tenants | None = None
    tenants_read_s: Seconds = 0.0


def _error_name(error: Exception) -> str:
    """``NVMLError_GpuIsLost`` → ``GpuIsLost``."""
    return type(error).__name__.removeprefix("NVMLError_")


def _explain(error: Exception) -> str:
    return _INIT_PROBLEMS.get(_error_name(error), f"NVML: {error}")


def _ask(call: Callable[..., Value], *args: Any) -> Value | None:
    """The call's value, or None: for figures that many devices do not have."""
    try:
        return call(*args)
    except Exception:  # pynvml raises NVMLError, and others from its own wrappers
        return None


def _first_known(names: Sequence[str], *args: Any) -> Any:
    """Call the first of pynvml's functions that this pynvml and this driver both have."""
    import pynvml

    missing: Exception = AttributeError(f"pynvml has none of {', '.join(names)}")
    for name in names:
        function = getattr(pynvml, name, None)
        if function is None:
            continue
        try:
            return function(*args)
        except pynvml.NVMLError_FunctionNotFound as error:
            missing = error
    raise missing


@contextlib.contextmanager
def _session() -> Iterator[None]:
    """NVML initialised, and shut down after. Raises NVMLError or ImportError."""
    import pynvml

    pynvml.nvmlInit()
    try:
        yield
    finally:
        _ask(pynvml.nvmlShutdown)


def _all_handles() -> dict[int, Handle]:
    """Every device that answers, by NVML index; a lost one is left out."""
    import pynvml

    found: dict[int, Handle] = {}
    for index in range(pynvml.nvmlDeviceGetCount()):
        handle = _ask(pynvml.nvmlDeviceGetHandleByIndex, index)
        if handle is not None:
            found[index] = handle
    return found


def _device_of_mig(uuid: str) -> tuple[int, Handle] | None:
    """The MIG instance of that UUID with the index of the device that it is a part of."""
    import pynvml

    def find() -> tuple[int, Handle]:
        handle = pynvml.nvmlDeviceGetHandleByUUID(uuid.encode())
        parent = pynvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle)
        return pynvml.nvmlDeviceGetIndex(parent), handle

    return _ask(find)


def _named(entry: str, handles: Mapping[int, Handle]) -> tuple[int, Handle] | None:
    """The device that one entry of ``CUDA_VISIBLE_DEVICES`` names, or None."""
    import pynvml

    if entry.startswith("MIG-"):
        return _device_of_mig(entry)
    if entry.isdecimal():
        handle = handles.get(int(entry))
        return None if handle is None else (int(entry), handle)
    for index, handle in handles.items():
        uuid = _ask(pynvml.nvmlDeviceGetUUID, handle)
        if entry.startswith("GPU-") and uuid is not None and uuid.startswith(entry):
            return index, handle
    return None


def _visible(setting: str | None) -> list[_Device]:
    """The devices that CUDA would show under this ``CUDA_VISIBLE_DEVICES``, in its order.

    As CUDA does, the list ends at the first entry that names no device; unset means all.
    """
    handles = _all_handles()
    if setting is None:
        return [_Device(index, handle, _mig(handle)) for index, handle in handles.items()]
    devices: list[_Device] = []
    for entry in setting.split(","):
        named = _named(entry.strip(), handles)
        if named is None:
            break
        is_instance = entry.strip().startswith("MIG-")
        devices.append(_Device(*named, mig=is_instance or _mig(named[1])))
    return devices


def _mig(handle: Handle) -> bool | None:
    """True if the device is split into instances; None where it can't be."""
    import pynvml

    mode = _ask(pynvml.nvmlDeviceGetMigMode, handle)
    return None if mode is None else mode[0] == pynvml.NVML_DEVICE_MIG_ENABLE


def _visible_setting() -> str | None:
    return os.environ.get("CUDA_VISIBLE_DEVICES")


def _facts(device: _Device, driver: str | None) -> GpuFacts:
    import pynvml

    handle = device.handle
    memory = _ask(pynvml.nvmlDeviceGetMemoryInfo, handle)
    limit_mw = _ask(pynvml.nvmlDeviceGetEnforcedPowerLimit, handle)
    return GpuFacts(
        index=device.index,
        name=_ask(pynvml.nvmlDeviceGetName, handle) or "unnamed device",
        total_bytes=None if memory is None else int(memory.total),
        driver=driver,
        power_limit_w=None if limit_mw is None else limit_mw / 1000,
        mig=device.mig,
    )


def _probe() -> NvmlProbe:
    import pynvml

    with _session():
        count = pynvml.nvmlDeviceGetCount()
        if count == 0:
            return NvmlProbe(problem=_NO_DEVICE)
        setting = _visible_setting()
        devices = _visible(setting)
        driver = _ask(pynvml.nvmlSystemGetDriverVersion)
        gpus = tuple(_facts(device, driver) for device in devices)
        if gpus and (setting is not None or len(gpus) == count):
            return NvmlProbe(gpus)
        if setting is not None:
            hidden = f"CUDA_VISIBLE_DEVICES={setting!r} leaves none of {count} device(s)"
            return NvmlProbe(problem=hidden)
        return NvmlProbe(gpus, f"{count - len(gpus)} of {count} device(s) do not answer")


def probe() -> NvmlProbe:
    """What NVIDIA devices are usable here; never raises.

    ``problem`` is a reason in plain words: no driver library, library and driver of different
    versions, no device, none visible, or some that do not answer.
    """
    try:
        return _probe()
    except ImportError as error:
        return NvmlProbe(problem=f"the Python package nvidia-ml-py is missing: {error}")
    except Exception as error:  # a broken driver must not stop a run on the CPU
        return NvmlProbe(problem=_explain(error))


def device_used_bytes(visible: str | None = None) -> Bytes | None:
    """Bytes in use on all visible devices, by any process; the driver's reserve left out if told.

    ``visible`` is the server's ``CUDA_VISIBLE_DEVICES`` if it differs from ours. None if there is
    no device or one of them can't be read.
    """
    setting = _visible_setting() if visible is None else visible
    try:
        import pynvml

        with _session():
            devices = _visible(setting)
            if setting is None and len(devices) < pynvml.nvmlDeviceGetCount():
                return None
            readings = [_memory(device).used for device in devices]
    except Exception:  # without NVML the figure is unknown, for whatever reason
        return None
    known = [used for used in readings if used is not None]
    return sum(known) if known else None


@dataclass(frozen=True, slots=True)
class _Memory:
    used: Bytes | None = None
    total: Bytes | None = None
    reserved: Bytes | None = None


def _memory(device: _Device) -> _Memory:
    """The device's memory, told apart as finely as its driver can. Raises NVMLError."""
    import pynvml

    if device.memory_v2:
        try:
            info = pynvml.nvmlDeviceGetMemoryInfo(device.handle, version=pynvml.nvmlMemory_v2)
            return _Memory(int(info.used), int(info.total), int(info.reserved))
        except pynvml.NVMLError as error:
            if _error_name(error) not in _MEMORY_V2_MISSING:
                raise
            device.memory_v2 = False
    info = pynvml.nvmlDeviceGetMemoryInfo(device.handle)
    return _Memory(int(info.used), int(info.total), None)


def _listed(handle: Handle) -> dict[int, Bytes | None]:
    """Process id → bytes of every process that computes or draws on the device."""
    kinds = ("Compute", "Graphics")
    listed: dict[int, Bytes | None] = {}
    for kind in kinds:
        base = f"nvmlDeviceGet{kind}RunningProcesses"
        for process in _first_known((f"{base}_v3", f"{base}_v2"), handle):
            # one that does both is in both lists, with the same figure
            listed[process.pid] = process.usedGpuMemory
    return listed


def _attribute(
    listed: Mapping[int, Bytes | None] | None, ours: frozenset[int], host_pids: bool
) -> _Tenants:
    """Tell our processes from others; unknown without a list or where its ids may not be ours.

    In a container the ids are believed only if all of them live here and one is ours: then the
    driver has translated them.
    """
    if listed is None:
        return _Tenants()
    if not host_pids and not (ours & listed.keys() and all(map(psutil.pid_exists, listed))):
        return _Tenants()
    held = [size for pid, size in listed.items() if pid in ours]
    known = [size for size in held if size is not None]
    return _Tenants(
        ours_bytes=sum(known) if len(known) == len(held) else None,
        others=len(listed.keys() - ours),
    )


def has_host_pids() -> bool:
    """Whether this process lives in the machine's first pid namespace, as no container does."""
    try:
        return Path("/proc/self/ns/pid").stat().st_ino == _HOST_PID_NAMESPACE
    except OSError:
        return False


def _reason_names(mask: int) -> tuple[str, ...]:
    """Names of the bits set; one that we do not know is given as ``bit_0x800``."""
    bits = [1 << at for at in range(mask.bit_length()) if mask >> at & 1]
    return tuple(CLOCK_REASONS.get(bit, f"bit_{bit:#x}") for bit in bits)


def _clock_reasons(handle: Handle) -> tuple[str, ...]:
    names = ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons")
    return _reason_names(int(_first_known(names, handle)))


@dataclass(slots=True)
class NvmlSource:
    """Reads every visible device. Take it from :meth:`open`, and ``close`` it.

    ``pids`` gives the server's process ids at the time of the reading. A device that is lost
    half-way goes on giving samples in which everything is unknown.

    Who holds what is asked once a second, since listing processes is the dearest call by far and
    the answer moves slowly; the samples in between repeat it. ``pids`` is called every five
    seconds at most, and at the first reading.
    """

    devices: list[_Device]
    pids: Pids
    host_pids: bool
    opened: bool = False
    own_pids: frozenset[int] = frozenset()
    walked_at_s: Seconds | None = None
    problems: Problems = field(default_factory=Problems)

    @classmethod
    def open(
        cls, pids: Pids, *, visible: str | None = None, host_pids: bool | None = None
    ) -> NvmlSource:
        """Initialise NVML and look up the visible devices; none if there is no NVML.

        ``visible`` is the server's ``CUDA_VISIBLE_DEVICES`` if it differs from ours;
        ``host_pids`` says whether NVML's process ids are ours, found out if None.
        """
        source = cls([], pids, has_host_pids() if host_pids is None else host_pids)
        setting = _visible_setting() if visible is None else visible
        try:
            import pynvml

            pynvml.nvmlInit()
            source.opened = True
            source.devices = _visible(setting)
        except Exception as error:  # told in problems; the other sources go on
            source.problems.note(_explain(error))
        else:
            if not source.devices:
                source.problems.note(_NO_DEVICE)
        return source

    def read(self, now: Seconds) -> list[GpuSample]:
        """One sample per visible device, stamped ``now``; none if there is no device."""
        return [self._sample(device, now) for device in self.devices]

    def _sample(self, device: _Device, now: Seconds) -> GpuSample:
        import pynvml

        handle = device.handle
        memory = self._memory(device)
        # a device that has just been lost must not go on showing what it held
        tenants = _Tenants() if memory.used is None else self._tenants(device, now)
        busy = _ask(pynvml.nvmlDeviceGetUtilizationRates, handle)
        power_mw = _ask(pynvml.nvmlDeviceGetPowerUsage, handle)
        energy_mj = _ask(pynvml.nvmlDeviceGetTotalEnergyConsumption, handle)
        return GpuSample(
            t_s=now,
            device=device.index,
            used_bytes=memory.used,
            total_bytes=memory.total,
            reserved_bytes=memory.reserved,
            process_bytes=tenants.ours_bytes,
            utilization=None if busy is None else busy.gpu / 100,
            power_w=None if power_mw is None else power_mw / 1000,
            energy_j=None if energy_mj is None else energy_mj / 1000,
            throttle_reasons=_ask(_clock_reasons, handle),
            other_processes=tenants.others,
        )

    def _memory(self, device: _Device) -> _Memory:
        try:
            return _memory(device)
        except Exception as error:  # unknown, and told
            self.problems.note(f"device {device.index}: {error}")
            return _Memory()

    def _tenants(self, device: _Device, now: Seconds) -> _Tenants:
        if device.mig:
            return _Tenants()
        if device.tenants is None or now - device.tenants_read_s >= TENANTS_REFRESH_S:
            listed = _ask(_listed, device.handle)
            ours = self._ours(now)
            device.tenants = _attribute(listed, ours, self.host_pids)
            device.tenants_read_s = now
        return device.tenants

    def _ours(self, now: Seconds) -> frozenset[int]:
        if self.walked_at_s is None or now - self.walked_at_s >= TREE_REFRESH_S:
            self.own_pids, self.walked_at_s = self.pids(), now
        return self.own_pids

    def close(self) -> None:
        """Shut NVML down; nothing is read after."""
        if self.opened:
            import pynvml

            self.opened, self.devices = False, []
            _ask(pynvml.nvmlShutdown)
