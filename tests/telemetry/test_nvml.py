"""NVML through the real pynvml, over a stand-in driver library built from C on the spot.

The library is loaded in a child process, which keeps it apart from a real driver and lets each
test choose its driver. Nothing of pynvml is replaced.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from harness.telemetry.nvml import CLOCK_REASONS

HERE = Path(__file__).parent
GIB = 2**30
OURS, NEIGHBOUR = 41001, 41002

# Device 0 is busy with our server and a neighbour; device 1 is idle and has no power sensor.
TWO_DEVICES = {
    "count": "2",
    "driver": "570.86.15",
    "0.name": "NVIDIA H200",
    "0.uuid": "GPU-aaaa1111-0000-0000-0000-000000000000",
    "0.total": str(141 * GIB),
    "0.used": str(100 * GIB),
    "0.reserved": str(1 * GIB),
    "0.utilization": "87",
    "0.power": "412500",  # mW
    "0.power_limit": "700000",
    "0.energy": "9000250",  # mJ
    "0.reasons": "0x24",  # 0x4 software power cap, 0x20 software thermal slow-down
    "0.mig": "0",
    "0.compute": f"{OURS}:{90 * GIB},{NEIGHBOUR}:{9 * GIB}",
    "0.graphics": "",
    "1.name": "NVIDIA L4",
    "1.uuid": "GPU-bbbb2222-0000-0000-0000-000000000000",
    "1.total": str(24 * GIB),
    "1.used": str(2 * GIB),
    "1.reserved": "0",
    "1.utilization": "0",
    "1.reasons": "0x1",
    "1.compute": "",
    "1.graphics": "",
}
UNKNOWN = {
    "used_bytes": None,
    "total_bytes": None,
    "reserved_bytes": None,
    "process_bytes": None,
    "utilization": None,
    "power_w": None,
    "energy_j": None,
    "throttle_reasons": None,
    "other_processes": None,
}


class Machine:
    """A machine with the stand-in driver, seen from a child process."""

    def __init__(self, folder: Path, child: subprocess.Popen[str]) -> None:
        self._control = folder / "machine.txt"
        self._child = child

    def is_(self, settings: dict[str, str]) -> None:
        """From now on the machine is like this."""
        self._control.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))

    def ask(self, question: str, *, cuda: str | None = None, **options: Any) -> Any:
        """What the child answers; ``cuda`` is its CUDA_VISIBLE_DEVICES."""
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        self._child.stdin.write(json.dumps([question, cuda, options]) + "\n")
        self._child.stdin.flush()
        return json.loads(self._child.stdout.readline())


def _compile(folder: Path, *flags: str) -> None:
    compiler = shutil.which("gcc") or shutil.which("cc")
    assert compiler is not None, "these tests need a C compiler; .ci/run installs one"
    target = folder / "libnvidia-ml.so.1"
    options = ["-Wall", "-Wextra", "-Werror", "-O1", "-shared", "-fPIC", *flags]
    source = HERE / "nvml_standin.c"
    subprocess.run([compiler, *options, "-o", str(target), str(source)], check=True)


@contextmanager
def _machine(folder: Path) -> Iterator[Machine]:
    environment = {
        **os.environ,
        "LD_LIBRARY_PATH": str(folder),
        "NVML_STANDIN": str(folder / "machine.txt"),
        "PYTHONPATH": str(HERE.parent.parent),
    }
    child = subprocess.Popen(
        [sys.executable, str(HERE / "nvml_child.py")],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with child:
        yield Machine(folder, child)
        assert child.stdin is not None
        child.stdin.close()
        assert child.wait(10) == 0


@pytest.fixture(scope="module")
def recent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    folder = tmp_path_factory.mktemp("recent")
    _compile(folder)
    with _machine(folder) as machine:
        yield machine


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    folder = tmp_path_factory.mktemp("old")
    _compile(folder, "-DOLD_DRIVER")
    with _machine(folder) as machine:
        yield machine


@pytest.fixture
def opened(recent: Machine) -> Iterator[Callable[..., Any]]:
    """Open a source on a machine of those settings, read once, and close it after the test."""

    def read(settings: dict[str, str], pids: list[int], **options: Any) -> Any:
        recent.is_(settings)
        recent.ask("open", pids=pids, **{"host_pids": True, **options})
        return recent.ask("read", now=1.0)

    yield read
    recent.ask("close")


def test_a_reading_gives_every_figure_of_the_device_in_our_units(
    opened: Callable[..., Any],
) -> None:
    busy = opened(TWO_DEVICES, [OURS])[0]
    assert busy == {
        "t_s": 1.0,
        "device": 0,
        "used_bytes": 100 * GIB,
        "total_bytes": 141 * GIB,
        "reserved_bytes": 1 * GIB,
        "process_bytes": 90 * GIB,
        "utilization": 0.87,
        "power_w": 412.5,
        "energy_j": 9000.25,
        "throttle_reasons": ["sw_power_cap", "sw_thermal_slowdown"],
        "other_processes": 1,
    }


def test_a_figure_that_one_device_lacks_is_unknown_and_the_rest_is_known(
    opened: Callable[..., Any],
) -> None:
    idle = opened(TWO_DEVICES, [OURS])[1]
    assert (idle["power_w"], idle["energy_j"]) == (None, None)
    assert (idle["used_bytes"], idle["utilization"]) == (2 * GIB, 0.0)
    assert (idle["process_bytes"], idle["other_processes"]) == (0, 0)
    assert idle["throttle_reasons"] == ["gpu_idle"]


def test_memory_that_the_driver_does_not_tell_is_unknown_and_noted(
    recent: Machine, opened: Callable[..., Any]
) -> None:
    unified = {key: value for key, value in TWO_DEVICES.items() if key != "0.total"}
    assert opened(unified, [OURS])[0]["used_bytes"] is None
    problems = recent.ask("problems")
    assert problems == {"count": 1, "first_message": "device 0: Not Supported"}


def test_a_device_lost_half_way_turns_unknown_and_its_neighbour_goes_on(
    recent: Machine, opened: Callable[..., Any]
) -> None:
    opened(TWO_DEVICES, [OURS])
    recent.is_({**TWO_DEVICES, "0.lost": "1"})
    lost, kept = recent.ask("read", now=1.1)
    assert lost == {"t_s": 1.1, "device": 0, **UNKNOWN}
    assert kept["used_bytes"] == 2 * GIB
    assert recent.ask("problems") == {"count": 1, "first_message": "device 0: GPU is lost"}


def test_a_device_that_comes_back_is_read_again(
    recent: Machine, opened: Callable[..., Any]
) -> None:
    opened({**TWO_DEVICES, "0.used": "!999"}, [OURS])
    recent.is_(TWO_DEVICES)
    back = recent.ask("read", now=1.1)[0]
    assert (back["used_bytes"], back["reserved_bytes"]) == (100 * GIB, GIB)
    assert back["process_bytes"] == 90 * GIB


def test_an_old_driver_counts_its_reserve_as_used_and_we_say_so(old: Machine) -> None:
    old.is_(TWO_DEVICES)
    old.ask("open", pids=[OURS], host_pids=True)
    sample = old.ask("read", now=0.0)[0]
    # 100 GiB in use + 1 GiB reserve, not told apart
    assert (sample["used_bytes"], sample["reserved_bytes"]) == (101 * GIB, None)
    assert sample["process_bytes"] == 90 * GIB
    assert sample["throttle_reasons"] == ["sw_power_cap", "sw_thermal_slowdown"]
    assert old.ask("problems")["count"] == 0
    old.ask("close")


def test_the_servers_processes_are_added_up_and_all_others_counted(
    opened: Callable[..., Any],
) -> None:
    # Two of ours compute: 30 + 12 = 42 GiB. The desktop 7 draws, and 8 computes and draws.
    shared = {
        **TWO_DEVICES,
        "0.compute": f"{OURS}:{30 * GIB},41003:{12 * GIB},8:{GIB}",
        "0.graphics": f"7:{GIB},8:{GIB}",
    }
    sample = opened(shared, [OURS, 41003, 41004])[0]
    assert (sample["process_bytes"], sample["other_processes"]) == (42 * GIB, 2)


def test_our_bytes_are_unknown_where_the_driver_lists_us_without_a_figure(
    opened: Callable[..., Any],
) -> None:
    sample = opened({**TWO_DEVICES, "0.compute": f"{OURS}:-,{NEIGHBOUR}:{GIB}"}, [OURS])[0]
    assert (sample["process_bytes"], sample["other_processes"]) == (None, 1)


def test_processes_are_unknown_where_the_driver_does_not_list_them(
    opened: Callable[..., Any],
) -> None:
    sample = opened({**TWO_DEVICES, "0.compute": "!4"}, [OURS])[0]
    assert (sample["process_bytes"], sample["other_processes"]) == (None, None)
    assert sample["used_bytes"] == 100 * GIB


@pytest.mark.parametrize("listed", ["", f"4194301:{GIB}", f"{OURS}:{GIB},4194301:{GIB}"])
def test_in_a_container_ids_that_may_be_the_hosts_tell_nothing(
    opened: Callable[..., Any], listed: str
) -> None:
    sample = opened({**TWO_DEVICES, "0.compute": listed}, [OURS], host_pids=False)[0]
    assert (sample["process_bytes"], sample["other_processes"]) == (None, None)


def test_in_a_container_ids_that_all_live_here_are_believed(opened: Callable[..., Any]) -> None:
    here, above = os.getpid(), os.getppid()
    translated = {**TWO_DEVICES, "0.compute": f"{here}:{3 * GIB},{above}:{GIB}"}
    sample = opened(translated, [here], host_pids=False)[0]
    assert (sample["process_bytes"], sample["other_processes"]) == (3 * GIB, 1)


def test_a_change_of_tenants_shows_within_a_second(
    recent: Machine, opened: Callable[..., Any]
) -> None:
    opened(TWO_DEVICES, [OURS])
    recent.is_({**TWO_DEVICES, "0.compute": f"{OURS}:{90 * GIB},5:1,6:1"})
    assert recent.ask("read", now=1.9)[0]["other_processes"] == 1
    assert recent.ask("read", now=2.0)[0]["other_processes"] == 2


def test_on_a_split_device_who_holds_what_is_unknown(opened: Callable[..., Any]) -> None:
    sample = opened({**TWO_DEVICES, "0.mig": "1"}, [OURS])[0]
    assert (sample["process_bytes"], sample["other_processes"]) == (None, None)
    assert sample["used_bytes"] == 100 * GIB


def test_a_mig_instance_is_read_by_itself_under_the_index_of_its_device(
    opened: Callable[..., Any],
) -> None:
    instance = {"8.uuid": "MIG-cccc", "8.parent": "1", "8.total": "500", "8.used": "200"}
    settings = {**TWO_DEVICES, **instance, "8.reserved": "10"}
    (sample,) = opened(settings, [OURS], cuda="MIG-cccc")
    known = {"used_bytes": 200, "total_bytes": 500, "reserved_bytes": 10}
    assert sample == {"t_s": 1.0, "device": 1, **UNKNOWN, **known}


def test_a_reason_that_we_have_no_name_for_is_not_lost(opened: Callable[..., Any]) -> None:
    sample = opened({**TWO_DEVICES, "0.reasons": "0x1008"}, [OURS])[0]
    assert sample["throttle_reasons"] == ["hw_slowdown", "bit_0x1000"]


def test_no_reason_at_all_is_known_and_empty(opened: Callable[..., Any]) -> None:
    assert opened({**TWO_DEVICES, "0.reasons": "0"}, [OURS])[0]["throttle_reasons"] == []


def test_every_reason_that_pynvml_knows_has_a_name() -> None:
    import pynvml

    known = {
        getattr(pynvml, name)
        for name in dir(pynvml)
        if name.startswith(("nvmlClocksEventReason", "nvmlClocksThrottleReason"))
    }
    bits = {value for value in known if value and value & (value - 1) == 0}
    assert bits == set(CLOCK_REASONS)


def test_the_probe_tells_the_facts_of_every_device(recent: Machine) -> None:
    recent.is_(TWO_DEVICES)
    assert recent.ask("probe") == {
        "gpus": [
            {
                "index": 0,
                "name": "NVIDIA H200",
                "total_bytes": 141 * GIB,
                "driver": "570.86.15",
                "power_limit_w": 700.0,
                "mig": False,
            },
            {
                "index": 1,
                "name": "NVIDIA L4",
                "total_bytes": 24 * GIB,
                "driver": "570.86.15",
                "power_limit_w": None,
                "mig": None,
            },
        ],
        "problem": None,
    }


@pytest.mark.parametrize(
    ("settings", "visible", "words"),
    [
        ({"init": "!18"}, None, "differ in version"),
        ({"init": "!9"}, None, "kernel driver is not loaded"),
        ({"init": "!4"}, None, "may not use the NVIDIA driver"),
        ({"init": "!999"}, None, "Unknown Error"),
        ({"count": "0"}, None, "shows no device"),
        (TWO_DEVICES, "", "leaves none of 2"),
        ({**TWO_DEVICES, "0.lost": "1", "1.lost": "1"}, None, "2 of 2 device(s) do not answer"),
    ],
)
def test_the_probe_says_in_words_why_there_is_no_device(
    recent: Machine, settings: dict[str, str], visible: str | None, words: str
) -> None:
    recent.is_(settings)
    answer = recent.ask("probe", cuda=visible)
    assert answer["gpus"] == []
    assert words in answer["problem"]


def test_the_probe_keeps_the_devices_that_answer_beside_a_lost_one(recent: Machine) -> None:
    recent.is_({**TWO_DEVICES, "0.lost": "1"})
    answer = recent.ask("probe")
    assert [gpu["name"] for gpu in answer["gpus"]] == ["NVIDIA L4"]
    assert answer["problem"] == "1 of 2 device(s) do not answer"


def test_without_a_usable_driver_library_nothing_is_known_and_nothing_breaks(
    tmp_path: Path,
) -> None:
    (tmp_path / "libnvidia-ml.so.1").touch()  # hides a real one; the loader refuses an empty file
    with _machine(tmp_path) as machine:
        assert "no NVIDIA driver library" in machine.ask("probe")["problem"]
        assert machine.ask("used") is None
        assert machine.ask("open", pids=[1]) == 0
        assert machine.ask("read", now=0.0) == []
        assert "no NVIDIA driver library" in machine.ask("problems")["first_message"]
        machine.ask("close")


@pytest.mark.parametrize(
    ("visible", "used_gib"),
    [
        (None, 102),  # 100 + 2
        ("0", 100),
        ("1,0", 102),
        (" 1 ", 2),
        ("GPU-bbbb2222-0000-0000-0000-000000000000", 2),
        ("GPU-aaaa", 100),
        ("1,7,0", 2),  # CUDA ends the list at the first entry that names no device
        ("1,-1,0", 2),
    ],
)
def test_memory_in_use_is_that_of_the_visible_devices(
    recent: Machine, visible: str | None, used_gib: int
) -> None:
    recent.is_(TWO_DEVICES)
    assert recent.ask("used", cuda=visible) == used_gib * GIB


@pytest.mark.parametrize("visible", ["", "-1", "GPU-ffff"])
def test_memory_in_use_is_unknown_when_no_device_is_visible(recent: Machine, visible: str) -> None:
    recent.is_(TWO_DEVICES)
    assert recent.ask("used", cuda=visible) is None


def test_memory_in_use_is_unknown_when_a_device_is_lost(recent: Machine) -> None:
    recent.is_({**TWO_DEVICES, "0.lost": "1"})
    assert recent.ask("used") is None


def test_the_servers_own_device_setting_goes_before_ours(recent: Machine) -> None:
    recent.is_(TWO_DEVICES)
    assert recent.ask("used", cuda="0", visible="1") == 2 * GIB
    assert recent.ask("open", cuda="0,1", pids=[OURS], visible="1") == 1
    assert [sample["device"] for sample in recent.ask("read", now=0.0)] == [1]
    recent.ask("close")
