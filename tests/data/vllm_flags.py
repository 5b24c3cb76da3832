"""Print ``harness/data/vllm_flags.json`` from the parser of the vLLM that is installed.

Run it in an environment with the pinned engine, when the pin moves::

    .venv/bin/python -m tests.data.vllm_flags > harness/data/vllm_flags.json

Each flag of ``vllm serve`` stands there in snake case with the values it is restricted to, if it
is, and how it is given: ``switch`` (``--x`` and ``--no-x``), ``on`` (``--x`` alone), ``value`` or
``optional`` (a value that may be left out). Not covered: the types of values.
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any


def flags() -> dict[str, dict[str, Any]]:
    """Every long flag of the engine's parser, by its name in snake case."""
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    found: dict[str, dict[str, Any]] = {}
    for action in make_arg_parser(FlexibleArgumentParser())._actions:
        for option in action.option_strings:
            # The second name of a switch is its denial.
            denial = option.startswith("--no-") and _how(action) == "switch"
            if option.startswith("--") and not denial and option != "--help":
                found[option[2:].replace("-", "_")] = _entry(action)
    return dict(sorted(found.items()))


def _entry(action: argparse.Action) -> dict[str, Any]:
    entry: dict[str, Any] = {"takes": _how(action)}
    if action.choices:
        entry["choices"] = sorted((c for c in action.choices if c is not None), key=str)
    return entry


def _how(action: argparse.Action) -> str:
    if isinstance(action, argparse.BooleanOptionalAction):
        return "switch"
    if action.nargs == 0:
        return "on"
    return "optional" if action.nargs in ("?", "*") else "value"


def vllm_version() -> str:
    """The installed version, without what names the build."""
    import vllm

    return vllm.__version__.partition("+")[0]


def text() -> str:
    """The file, whole."""
    lines = [f"  {json.dumps(name)}: {json.dumps(entry)}" for name, entry in flags().items()]
    version = json.dumps(vllm_version())
    body = ",\n".join(lines)
    return f'{{"vllm": {version}, "flags": {{\n{body}\n}}}}\n'


if __name__ == "__main__":
    # The engine writes warnings to standard output.
    out, sys.stdout = sys.stdout, sys.stderr
    out.write(text())
