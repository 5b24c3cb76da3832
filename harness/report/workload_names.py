"""What a load is called in sentences and titles: short, and no two alike of those it stands with.

Method: its own name where the scenario gives one; where several loads share a name, or have none,
what differs between them is said; a lone load without a name has its whole label.

Not covered: the label itself, which ``analysis`` makes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from harness import units
from harness.analysis.results import Analysis, Comparison
from harness.analysis.run_differences import workload_key

_Workload = Mapping[str, Any]


def _size(load: _Workload) -> str:
    return f"{_number(load, 'context_tokens')}+{_number(load, 'output_tokens')} tokens"


def _number(load: _Workload, key: str, digits: int = 0) -> str:
    value = load.get(key)
    return units.format_count(value if isinstance(value, int | float) else None, digits)


#: What can tell loads of one name apart, and how it is said.
_PARTS: tuple[tuple[tuple[str, ...], Callable[[_Workload], str]], ...] = (
    (("context_tokens", "output_tokens"), _size),
    (("concurrency",), lambda load: f"{_number(load, 'concurrency')} at once"),
    (("request_rate",), lambda load: f"{_number(load, 'request_rate', 2)} requests/s"),
    (("shared_prefix_tokens",), lambda load: f"{_number(load, 'shared_prefix_tokens')} shared"),
)


def workload_name(analysis: Analysis, comparison: Comparison) -> str:
    """The shortest name that no other load of the run has."""
    return name_among(
        comparison.workload,
        comparison.workload_label,
        [each.workload for each in analysis.comparisons],
    )


def name_among(workload: _Workload, label: str, loads: Iterable[_Workload]) -> str:
    """The shortest name that tells a load apart from all others of ``loads``, else its label.

    A load that ``loads`` holds several times counts once.
    """
    name = workload.get("name")
    alike = list({workload_key(load): load for load in loads if load.get("name") == name}.values())
    if len(alike) == 1:
        return str(name) if name else label
    told = [say for keys, say in _PARTS if len({_values(load, keys) for load in alike}) > 1]
    names = [_full(load, told) for load in alike]
    mine = _full(workload, told)
    return mine if mine and names.count(mine) == 1 else label


def _full(load: _Workload, told: list[Callable[[_Workload], str]]) -> str:
    return ", ".join([str(load["name"])] * bool(load.get("name")) + [say(load) for say in told])


def _values(load: _Workload, keys: tuple[str, ...]) -> str:
    return repr([load.get(key) for key in keys])
