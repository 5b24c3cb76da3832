"""Reads command lines on stdin and asks vLLM's own parser about each; a child of the test.

One line of JSON in, one out: a list of argument lists → a list of complaints (null: accepted).
Importing the engine takes seconds, so one child judges every command. Beside the complaints it
tells which KV dtypes the CPU backend says it takes.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys


def main() -> None:
    """Judge every command line."""
    # The engine writes warnings where the answer belongs.
    answer, sys.stdout = sys.stdout, sys.stderr
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    parser = make_arg_parser(FlexibleArgumentParser())
    complaints = []
    for words in json.load(sys.stdin):
        told = io.StringIO()
        try:
            with contextlib.redirect_stderr(told):
                parser.parse_args(words)
            complaints.append(None)
        except SystemExit:
            complaints.append(told.getvalue().strip().splitlines()[-1])
    json.dump({"complaints": complaints, "cpu_kv_dtypes": _cpu_kv_dtypes()}, answer)


def _cpu_kv_dtypes() -> list[str]:
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend

    return list(CPUAttentionBackend.supported_kv_cache_dtypes)


if __name__ == "__main__":
    main()
