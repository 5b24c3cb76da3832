from __future__ import annotations

from dataclasses import replace

import pytest

from harness.analysis.compare import analyse
from harness.report.places import places
from tests import records


def test_the_baseline_comes_first_wherever_its_pool_stands() -> None:
    analysis = analyse(*records.bench(1))
    assert dict(places(analysis)) == {"fp16": 0, "fp8": 1}
    turned = replace(analysis, kv=tuple(reversed(analysis.kv)))
    assert dict(places(turned)) == {"fp16": 0, "fp8": 1}


def test_a_variant_without_a_pool_has_a_place_of_its_own() -> None:
    analysis = analyse(*records.bench(1))
    assert dict(places(replace(analysis, kv=()))) == {"fp16": 0, "fp8": 1}


def test_a_variant_that_the_run_does_not_have_never_looks_like_the_baseline() -> None:
    with pytest.raises(KeyError, match="nvfp4"):
        places(analyse(*records.bench(1)))["nvfp4"]
