"""YAML text → plain values, with the line of every key kept for error messages.

Built on PyYAML's safe loader: no tags beyond the standard ones, no aliases (a scenario has no
use for them, and nested ones can be made to expand without bound), no key given twice, no key
that YAML reads as anything but text, no number that YAML 1.1 reads otherwise than a person does
(``1e-6`` as text, ``1:30`` as 90, ``010`` as 8). Dates stay text. Values that nothing downstream
could store, print or pass on (``value_checks``) are refused here.
"""

from __future__ import annotations

import re
from collections.abc import Hashable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from harness.errors import NotFound, ScenarioError
from harness.scenario.value_checks import faults

KeyPath = tuple[str | int, ...]

MAX_SCENARIO_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Document:
    """A parsed file: its values, and the line (from 1) at which each key path begins."""

    source: str
    values: dict[str, Any]
    lines: dict[KeyPath, int]

    def where(self, path: KeyPath) -> str:
        """``file.yaml:12 (workloads.0.concurrency)``; the nearest known parent gives the line."""
        for length in range(len(path), -1, -1):
            line = self.lines.get(path[:length])
            if line is not None:
                break
        else:
            line = None
        spot = f"{self.source}:{line}" if line is not None else self.source
        return f"{spot} ({dotted(path)})" if path else spot


def dotted(path: KeyPath) -> str:
    """``("workloads", 0, "concurrency")`` → ``workloads.0.concurrency``."""
    return ".".join(str(part) for part in path)


_TEXT_TAG = "tag:yaml.org,2002:str"


class _Loader(yaml.SafeLoader):
    """The safe loader, without aliases and without dates."""

    def compose_node(self, parent: yaml.Node | None, index: object) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
            raise ScenarioError(
                "YAML aliases (*name) are not taken here",
                where=f"{self.name}:{mark.line + 1}",
                next_move="write the values out",
            )
        node = super().compose_node(parent, index)  # type: ignore[arg-type]
        is_key = index is None and isinstance(parent, yaml.MappingNode)
        # A quoted or tagged value is what its author made of it.
        if isinstance(node, yaml.ScalarNode) and node.style is None and not is_key:
            self._refuse_odd_number(node)
        return node

    def _refuse_odd_number(self, node: yaml.ScalarNode) -> None:
        told = _misread(node.tag, node.value)
        if told is not None:
            raise ScenarioError(
                f"YAML 1.1 reads `{node.value[:60]}` as {told[0]}",
                where=f"{self.name}:{node.start_mark.line + 1}",
                next_move=f"write {told[1]}, or put it in quotes if text is meant",
            )

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: dict[str, int] = {}
        for key_node, _ in node.value:
            key, line = str(key_node.value), key_node.start_mark.line + 1
            if key in seen:
                raise ScenarioError(
                    f"the key {key!r} stands twice (first in line {seen[key]})",
                    where=f"{self.name}:{line}",
                    next_move="keep one of the two",
                )
            seen[key] = line
        self._refuse_odd_keys(node)
        return super().construct_mapping(node, deep)

    def _refuse_odd_keys(self, node: yaml.MappingNode) -> None:
        """YAML 1.1 reads ``on``, ``no``, ``1`` and an empty key as no text: no name, no flag."""
        for key_node, _ in node.value:
            if key_node.tag == _MERGE_TAG:
                raise ScenarioError(
                    "YAML merge keys (<<) are not taken here",
                    where=f"{self.name}:{key_node.start_mark.line + 1}",
                    next_move="write the keys out",
                )
            if isinstance(key_node, yaml.ScalarNode) and key_node.tag != _TEXT_TAG:
                raise ScenarioError(
                    f"YAML reads the key `{key_node.value}` as "
                    f"{self.construct_object(key_node)!r}, not as text",
                    where=f"{self.name}:{key_node.start_mark.line + 1}",
                    next_move=f'put it in quotes: "{key_node.value}"',
                )


def _misread(tag: str, text: str) -> tuple[str, str] | None:
    """What YAML 1.1 makes of a plain number that a person reads otherwise, and how to write it.

    Source: the types of YAML 1.1 (yaml.org/type): a float needs a dot and a signed exponent, a
    colon makes a number of base 60, a leading zero one of base 8.
    """
    if tag == _TEXT_TAG and _EXPONENT.fullmatch(text):
        return "text, not as a number", _with_exponent(text)
    if tag in _NUMBER_TAGS and ":" in text:
        return "a number of base 60", f"{_of_base_60(text):g} if that is meant"
    if tag == "tag:yaml.org,2002:int" and _OCTAL.fullmatch(text):
        return "a number of base 8", f"{text.replace('0', '', 1).lstrip('+')} without the zero"
    return None


def _of_base_60(text: str) -> float:
    value = 0.0
    for digits in text.lstrip("+-").replace("_", "").split(":"):
        value = 60 * value + float(digits)
    return -value if text.startswith("-") else value


def _with_exponent(text: str) -> str:
    """``1e-6`` → ``1.0e-6``; a whole number that is not too long to read is written out."""
    value = float(text)
    if value.is_integer() and abs(value) < _WRITTEN_OUT:
        return str(int(value))
    mantissa, _, exponent = text.replace("_", "").lower().partition("e")
    dotted_ = mantissa if "." in mantissa else f"{mantissa}.0"
    return f"{dotted_}e{exponent if exponent[0] in '+-' else '+' + exponent}"


_EXPONENT = re.compile(r"[-+]?(\d+(\.\d*)?|\.\d+)[eE][-+]?\d+", re.ASCII)
_OCTAL = re.compile(r"[-+]?0[0-7_]+")
_WRITTEN_OUT = 1e15
_NUMBER_TAGS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")
_MERGE_TAG = "tag:yaml.org,2002:merge"
#: Types that a scenario has no use for: a date stays text, and so does a lone ``=``.
_UNUSED_TAGS = ("tag:yaml.org,2002:timestamp", "tag:yaml.org,2002:value")

_Loader.yaml_implicit_resolvers = {
    first: [(tag, regexp) for tag, regexp in resolvers if tag not in _UNUSED_TAGS]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def read_document(path: Path) -> Document:
    """Read a scenario file.

    Raises:
        NotFound: there is no such file.
        ScenarioError: it can't be read, or isn't a YAML mapping.
    """
    try:
        raw = _head_of(path)
    except FileNotFoundError:
        raise NotFound("there is no such scenario file", where=str(path)) from None
    except OSError as error:
        raise ScenarioError(f"the file can't be read: {error.strerror}", where=str(path)) from None
    if len(raw) > MAX_SCENARIO_BYTES:
        raise ScenarioError(
            f"the file has more than {MAX_SCENARIO_BYTES:,} bytes, the most of a scenario",
            where=str(path),
        )
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise ScenarioError("not UTF-8 text", where=f"{path}:{line}") from None
    return parse_document(text, source=str(path))


def _head_of(path: Path) -> bytes:
    """As much of a file as tells whether it is too long: a pipe may have no end."""
    with path.open("rb") as file:
        return file.read(MAX_SCENARIO_BYTES + 1)


def parse_document(text: str, *, source: str) -> Document:
    """Parse YAML text; ``source`` is what error messages call it."""
    node, values = _parse(text, source)
    if not isinstance(values, dict) or node is None:
        raise ScenarioError(
            "a scenario is a YAML mapping (key: value lines)",
            where=source,
            next_move="scenarios/smoke.yaml is the shortest complete one",
        )
    lines: dict[KeyPath, int] = {}
    _collect_lines(node, (), lines)
    document = Document(source, values, lines)
    for fault, path in faults(values):
        raise ScenarioError(fault, where=document.where(path))
    return document


def parse_value(text: str, *, source: str) -> Any:
    """Parse the right-hand side of a ``--set key=value`` as YAML (so ``[1, 4]`` is a list)."""
    value = _parse(text, source)[1]
    for fault, _ in faults(value):
        raise ScenarioError(fault, where=source)
    return value


def _parse(text: str, source: str) -> tuple[yaml.Node | None, Any]:
    loader = None
    try:
        loader = _Loader(text)
        loader.name = source
        node = loader.get_single_node()
        return node, None if node is None else loader.construct_document(node)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f"{source}:{mark.line + 1}" if mark is not None else source
        raise ScenarioError(f"not valid YAML: {error.problem}", where=where) from None
    except yaml.reader.ReaderError as error:
        line = text[: error.position].count("\n") + 1
        raise ScenarioError(
            f"not valid YAML: the character U+{_code_point(error.character):04X} is not allowed",
            where=f"{source}:{line}",
        ) from None
    except (yaml.YAMLError, ValueError) as error:
        raise ScenarioError(f"not valid YAML: {error}", where=source) from None
    except RecursionError:
        raise ScenarioError("nested too deeply to be a scenario", where=source) from None
    finally:
        if loader is not None:
            loader.dispose()


def _code_point(character: str | int) -> int:
    return character if isinstance(character, int) else ord(character)


def _collect_lines(node: yaml.Node, path: KeyPath, lines: dict[KeyPath, int]) -> None:
    lines.setdefault(path, node.start_mark.line + 1)
    if isinstance(node, yaml.MappingNode):
        for key_node, value_node in node.value:
            child = (*path, str(key_node.value))
            lines[child] = key_node.start_mark.line + 1
            _collect_lines(value_node, child, lines)
    elif isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            _collect_lines(item, (*path, index), lines)
