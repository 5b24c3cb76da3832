"""Asks the installed vLLM whatever the tests want to know of it; a child of theirs.

Importing the engine takes seconds, so one child answers all: a line of JSON in, one out. Asked are
``lines`` (argument lists: a complaint of vLLM's own parser about each, null where it accepts it)
and ``bench`` (the lists and the duration of a load, put through the arithmetic of ``vllm bench
serve``). Beside both it tells the KV dtypes that the CPU backend says it takes, and the flags as
``tests.data.vllm_flags`` prints them.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys

from tests.analysis import engine_metrics
from tests.data import vllm_flags


def main() -> None:
    """Answer everything."""
    # The engine writes warnings where the answer belongs.
    answer, sys.stdout = sys.stdout, sys.stderr
    asked = json.load(sys.stdin)
    told = {
        "complaints": _complaints(asked["lines"]),
        "cpu_kv_dtypes": _cpu_kv_dtypes(),
        "flags": vllm_flags.text(),
        "bench": engine_metrics.figures(**asked["bench"]),
    }
    json.dump(told, answer)


def _complaints(lines: list[list[str]]) -> list[str | None]:
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    parser = make_arg_parser(FlexibleArgumentParser())
    complaints: list[str | None] = []
    for words in lines:
        told = io.StringIO()
        try:
            with contextlib.redirect_stderr(told):
                parser.parse_args(words)
            complaints.append(None)
        except SystemExit:
            complaints.append(told.getvalue().strip().splitlines()[-1])
    return complaints


def _cpu_kv_dtypes() -> list[str]:
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend

    return list(CPUAttentionBackend.supported_kv_cache_dtypes)


if __name__ == "__main__":
    main()
