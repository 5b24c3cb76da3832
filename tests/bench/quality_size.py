"""What answer quality costs kvbench itself at the size of `fp8_vs_fp16` on CUDA.

    python -m tests.bench.quality_size [TOKENS]

A whole bench against the stand-in server with as many prompts, needles and judged pairs as the
CUDA profile asks, of TOKENS each (8,192 unless told). Prints the requests by kind, the processor
time of this process (the servers are others), its largest memory, and the bytes of the records.
The toy behind the stand-in is slow: ten minutes or so. Not covered: the time of a real server.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from harness.execute.local import run_scenario
from harness.execute.progress import Silent
from harness.scenario import load_scenario
from tests.quality.test_bench import CONFIG, SCENARIO

ROOT = Path(__file__).resolve().parents[2]


def main(tokens: int = 8192) -> dict[str, Any]:
    """Run it and return the figures."""
    os.environ["KVBENCH_ENGINE_PYTHON"] = str(ROOT / "tests" / "fake_engine" / "python")
    os.environ["KVBENCH_TEST_PYTHON"] = sys.executable
    os.environ |= {"FAKE_TOY": "judge=A", "FAKE_TOY_FP8": "noise=0.4"}
    with tempfile.TemporaryDirectory() as name:
        asked = Path(name) / "asked"
        os.environ["FAKE_ASKED"] = str(asked)
        scenario = load_scenario(_file(Path(name)), "cpu", overrides=_overrides(tokens))
        began, cpu = time.monotonic(), time.process_time()
        run = run_scenario(
            scenario, root=Path(name) / "results", command=["size"], progress=Silent()
        )
        files = [file for file in (run / "quality").rglob("*") if file.is_file()]
        return {
            "requests": dict(Counter(asked.read_text(encoding="utf-8").split())),
            "wall_s": round(time.monotonic() - began, 1),
            "own_cpu_s": round(time.process_time() - cpu, 1),
            "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
            "record_bytes": sum(file.stat().st_size for file in files),
        }


def _file(folder: Path) -> Path:
    (folder / "config.json").write_text(CONFIG)
    path = folder / "size.yaml"
    path.write_text(SCENARIO.format(model=folder).replace("max_model_len: 1024", _LENGTH))
    return path


_LENGTH = "max_model_len: 9216"


def _overrides(tokens: int) -> tuple[str, ...]:
    cuda = load_scenario(ROOT / "scenarios" / "fp8_vs_fp16.yaml", "cuda").quality
    assert cuda is not None
    assert cuda.needles is not None
    contexts = [context * tokens // 8192 for context in cuda.needles.context_tokens]
    return (
        "kv_budget.equal_bytes=1179648000",
        f"quality.num_prompts={cuda.num_prompts}",
        f"quality.context_tokens={tokens}",
        f"quality.answer_tokens={cuda.answer_tokens}",
        f"quality.needles={{context_tokens: {contexts}, depths: {list(cuda.needles.depths)}}}",
        "quality.judge=self",
        "timeouts.request_s=600",
    )


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(*map(int, sys.argv[1:2])), indent=2) + "\n")
