"""The house: imports go down only, doors are where they belong, and only the plugin meets vLLM."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

HARNESS = Path(__file__).resolve().parents[1] / "harness"

#: Floor of every module or package directly under ``harness/`` (see the package's docstring).
FLOORS = {
    "errors": 0,
    "units": 0,
    "clock": 0,
    "shell": 0,
    "overlay": 0,
    "characters": 0,
    "data": 0,
    "scenario": 1,
    "specs": 1,
    "record": 1,
    "plausible": 1,
    "theory": 2,
    "workload": 2,
    "analysis": 2,
    "engines": 3,
    "load": 3,
    "telemetry": 3,
    "quality": 3,
    "store": 3,
    "machine": 3,
    "run": 4,
    "execute": 4,
    "report": 4,
    "cli": 5,
}
FILES = sorted(path for path in HARNESS.rglob("*.py"))
#: The plugin runs inside vLLM; nothing else may import it.
PLUGIN = HARNESS / "engines" / "eviction"
#: Too heavy for a command line that answers in under a second: only inside functions.
HEAVY = {"torch", "vllm", "transformers", "openai", "pandas", "matplotlib", "pynvml", "httpx"}
#: Modules that must not open anything: values in, values out.
PURE = ("theory", "workload", "analysis")
#: Modules of ``analysis`` that put a prediction beside a measurement.
BESIDE_THEORY = {
    "ceilings",
    "compare",
    "eviction",
    "prefix",
    "scaling",
    "unstarted_server",
    "waste",
}
#: Modules that make figures of records, and so must not reach a prediction by any way.
MEASURING = (
    "agreement",
    "breakeven",
    "granted",
    "judging",
    "latency",
    "metrics",
    "occupancy",
    "offload",
    "phases",
    "request_blocks",
    "retrieval",
    "series",
    "stats",
    "steady",
)
DOORS = {"socket", "subprocess", "http", "urllib", "httpx", "openai", "psutil", "pynvml", "aiohttp"}


def name_of(path: Path) -> str:
    return path.relative_to(HARNESS.parent).as_posix()


def room_of(path: Path) -> str:
    return path.relative_to(HARNESS).parts[0].removesuffix(".py")


def imports(tree: ast.AST) -> Iterator[tuple[str, int]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module, node.lineno
            yield from ((f"{node.module}.{alias.name}", node.lineno) for alias in node.names)


def typing_only(tree: ast.Module) -> set[int]:
    """Lines under ``if TYPE_CHECKING``, which are never run."""
    return {
        inner.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.If)
        and isinstance(node.test, ast.Name)
        and node.test.id == "TYPE_CHECKING"
        for inner in ast.walk(node)
        if isinstance(inner, ast.Import | ast.ImportFrom)
    }


def at_top(tree: ast.Module) -> Iterator[tuple[str, int]]:
    inside = {
        inner
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        for inner in ast.walk(node)
    }
    skip = typing_only(tree)
    for node in ast.walk(tree):
        if node not in inside and isinstance(node, ast.Import | ast.ImportFrom):
            yield from ((name, line) for name, line in imports(node) if line not in skip)


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_imports_go_down_only(path: Path) -> None:
    room = room_of(path)
    if room == "__init__":
        return
    for name, line in imports(ast.parse(path.read_text(encoding="utf-8"))):
        parts = name.split(".")
        if parts[0] == "harness" and len(parts) > 1 and parts[1] in FLOORS:
            assert FLOORS[parts[1]] <= FLOORS[room], f"{name_of(path)}:{line} imports {name}"


def test_every_room_has_a_floor() -> None:
    rooms = {room_of(path) for path in FILES} - {"__init__", "__main__"}
    assert rooms == rooms & FLOORS.keys()


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_no_harness_import_hides_in_a_function(path: Path) -> None:
    if path.is_relative_to(PLUGIN):
        return
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            hidden = [name for name, _ in imports(node) if name.startswith("harness")]
            assert not hidden, f"{name_of(path)}: {node.name} imports {hidden}"


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_heavy_packages_are_imported_where_they_are_used(path: Path) -> None:
    if path.is_relative_to(PLUGIN):
        return
    tree = ast.parse(path.read_text(encoding="utf-8"))
    heavy = [(name, line) for name, line in at_top(tree) if name.split(".")[0] in HEAVY]
    assert not heavy, f"{name_of(path)}: {heavy}"


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_vllm_is_imported_by_the_plugin_alone(path: Path) -> None:
    if path.is_relative_to(PLUGIN):
        return
    names = imports(ast.parse(path.read_text(encoding="utf-8")))
    assert not [name for name, _ in names if name.split(".")[0] == "vllm"]


@pytest.mark.parametrize("path", [path for path in FILES if room_of(path) in PURE], ids=name_of)
def test_pure_rooms_open_no_door(path: Path) -> None:
    names = imports(ast.parse(path.read_text(encoding="utf-8")))
    assert not [name for name, _ in names if name.split(".")[0] in DOORS]


def test_theory_sees_no_measurement() -> None:
    for path in (HARNESS / "theory").rglob("*.py"):
        names = [name for name, _ in imports(ast.parse(path.read_text(encoding="utf-8")))]
        assert not [
            name for name in names if name.startswith(("harness.analysis", "harness.record"))
        ]


@cache
def analysis_imports() -> dict[str, set[str]]:
    """What each module of ``analysis`` imports of ``theory`` and of its own room."""
    found = {}
    for path in (HARNESS / "analysis").glob("*.py"):
        names = [name for name, _ in imports(ast.parse(path.read_text(encoding="utf-8")))]
        rooms = [name.split(".")[1:3] for name in names if name.startswith("harness.")]
        own = {module[1] for module in rooms if module[0] == "analysis" and len(module) > 1}
        found[path.stem] = own | ({"theory"} if ["theory"] in [r[:1] for r in rooms] else set())
    return found


def test_predictions_stand_beside_measurements_in_few_places() -> None:
    assert {name for name, own in analysis_imports().items() if "theory" in own} == BESIDE_THEORY


@pytest.mark.parametrize("module", MEASURING)
def test_a_measured_figure_can_not_lean_on_a_prediction(module: str) -> None:
    known, reached, ahead = analysis_imports(), set(), {module}
    while ahead:
        reached |= ahead
        ahead = {name for each in ahead for name in known.get(each, ())} - reached
    assert "theory" not in reached


def test_yaml_is_read_in_one_place() -> None:
    readers = {
        name_of(path)
        for path in FILES
        for name, _ in imports(ast.parse(path.read_text(encoding="utf-8")))
        if name.split(".")[0] == "yaml"
    }
    assert readers == {"harness/scenario/read.py"}


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_functions_stay_small(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno:
            length = node.end_lineno - node.lineno + 1
            assert length <= 60, f"{name_of(path)}:{node.lineno} {node.name} has {length} lines"
