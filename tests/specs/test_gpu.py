from __future__ import annotations

import pytest

from harness.errors import NotFound
from harness.specs.gpu import GPUS, gpu_spec, memory_note, reported_gpu
from harness.units import GIB, MIB


def test_every_row_has_a_source_and_a_balance_that_hardware_has() -> None:
    for row in GPUS:
        assert row.source
        # FLOPs per byte of memory traffic: from a T4 to a B200 between 50 and 500.
        assert 30 < row.flops_16bit / row.bandwidth_bytes_per_s < 500
        assert row.flops_8bit is None or 1.9 < row.flops_8bit / row.flops_16bit < 2.1


def test_names_are_unique() -> None:
    assert len({row.name for row in GPUS}) == len(GPUS)


@pytest.mark.parametrize("name", ["a100-80gb", "A100_80GB", "a100 80gb", "a100"])
def test_a_gpu_is_found_however_it_is_written(name: str) -> None:
    assert gpu_spec(name).memory_bytes == 80 * GIB


def test_memory_is_what_the_driver_reports_and_not_the_label() -> None:
    # 46,068 MiB are 44.99 GiB, on a card that is sold with 48.
    assert gpu_spec("l40s").memory_bytes == 46_068 * MIB
    assert "44.99 GiB is what nvidia-smi (modal-labs" in memory_note(gpu_spec("l40s"))
    assert "--memory-gib" in memory_note(gpu_spec("l40s"))
    assert "the size on its label" in memory_note(gpu_spec("mi300x"))


def test_an_unknown_gpu_is_not_found_and_the_known_ones_are_listed() -> None:
    with pytest.raises(NotFound) as caught:
        gpu_spec("h10")
    assert "h100-sxm" in (caught.value.legal or ())


@pytest.mark.parametrize(
    ("reported", "expected"),
    [
        ("NVIDIA A100-SXM4-80GB", "a100-80gb"),
        ("NVIDIA A100 80GB PCIe", "a100-80gb-pcie"),
        ("NVIDIA A100-SXM4-40GB", "a100-40gb"),
        ("NVIDIA A10", "a10"),
        ("NVIDIA H100 80GB HBM3", "h100-sxm"),
        ("NVIDIA H100 PCIe", "h100-pcie"),
        ("NVIDIA H100 NVL", "h100-nvl"),
        ("NVIDIA H200", "h200"),
        ("NVIDIA L4", "l4"),
        ("NVIDIA L40S", "l40s"),
        ("NVIDIA GeForce RTX 4090", "rtx-4090"),
        ("AMD Instinct MI300X", "mi300x"),
    ],
)
def test_drivers_names_find_their_row(reported: str, expected: str) -> None:
    found = reported_gpu(reported)
    assert found is not None
    assert found.name == expected


def test_an_unknown_device_has_no_row() -> None:
    assert reported_gpu("NVIDIA A30") is None
    assert reported_gpu("Graphics 9000") is None
