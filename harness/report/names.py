"""What a load is called in sentences and titles: short, and no two of a run alike.

Method: its own name where the scenario gives one; where several loads share a name, or have none,
what differs between them is said; a lone load without a name has its whole label.

Not covered: the label itself, which ``analysis`` makes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from harness import units
from harness.analysis.results import Analysis, Comparison

_Workload = Mapping[str, Any]

#: What can tell loads of one name apart, and how it is said.
_PARTS: tuple[tuple[tuple[str, ...], Callable[[_Workload], str]], ...] = (
    (("context_tokens", "output_tokens"), lambda load: _size(load)),
    (("concurrency",), lambda load: f"{_number(load, 'concurrency')} at once"),
    (("request_rate",), lambda load: f"{_number(load, 'request_rate', 2)} requests/s"),
    (("shared_prefix_tokens",), lambda load: f"{_number(load, 'shared_prefix_tokens')} shared"),
)


def load_name(analysis: Analysis, comparison: Comparison) -> str:
    """The shortest name that no other load of the run has."""
    name = comparison.workload.get("name")
    alike = [c.workload for c in analysis.comparisons if c.workload.get("name") == name]
    if len(alike) == 1:
        return str(name) if name else comparison.workload_label
    told = [say for keys, say in _PARTS if len({_values(load, keys) for load in alike}) > 1]
    names = [_full(load, told) for load in alike]
    mine = _full(comparison.workload, told)
    return mine if mine and names.count(mine) == 1 else comparison.workload_label


def _full(load: _Workload, told: list[Callable[[_Workload], str]]) -> str:
    return ", ".join([str(load["name"])] * bool(load.get("name")) + [say(load) for say in told])


def _values(load: _Workload, keys: tuple[str, ...]) -> str:
    return repr([load.get(key) for key in keys])


def _size(load: _Workload) -> str:
    return f"{_number(load, 'context_tokens')}+{_number(load, 'output_tokens')} tokens"


def _number(load: _Workload, key: str, digits: int = 0) -> str:
    value = load.get(key)
    return units.format_count(value if isinstance(value, int | float) else None, digits)
