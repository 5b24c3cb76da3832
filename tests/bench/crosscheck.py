"""``make crosscheck``: do we and ``vllm bench serve`` say the same of one real server?

One vLLM server with the embedded model (prefix caching off) is loaded by both clients in turn
(A B B A A B), each time with new random prompts of the same length, in the same closed loop.
Output and request throughput, median TTFT and median TPOT agree if the difference of the means
is no larger than the spread (largest less smallest) of either client's own three runs. The two
clients send different prompts, so equal figures are not to be expected, only equal
distributions. Exit code 1 if a figure disagrees.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from harness.engines import embedded
from harness.engines.vllm import SERVED_NAME, Server, ServerSpec
from tests.bench.ours import measure_apart
from tests.bench.vllm_bench_serve import vllm_bench_serve

ORDER = ("ours", "vllm", "vllm", "ours", "ours", "vllm")
LOAD = {"prompts": 32, "concurrency": 8, "input_tokens": 128, "output_tokens": 48}
FLAGS = {
    "max_model_len": 1024,
    "enable_prefix_caching": False,
    "enforce_eager": True,
    "kv_cache_memory_bytes": 512 << 20,
    "gpu_memory_utilization": 0.3,
}
NAMES = ("output_throughput", "request_throughput", "median_ttft_ms", "median_tpot_ms")


def say(text: str = "") -> None:
    """One line on stdout, at once."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def figures(client: str, server: Server, model: str, seed: int) -> dict[str, float]:
    """One run's figures under the names of ``vllm bench serve``."""
    if client == "ours":
        result = measure_apart(url=server.api_url, model=SERVED_NAME, seed=seed, **LOAD)
        result["median_ttft_ms"] = statistics.median(result["ttfts"]) * 1e3
        result["median_tpot_ms"] = statistics.median(result["tpots"]) * 1e3
    else:
        result = vllm_bench_serve(
            server.root_url, tokenizer=model, served_model=SERVED_NAME, seed=seed, **LOAD
        )
    say(f"  {client}: " + ", ".join(f"{name} {result[name]:.2f}" for name in NAMES))
    return {name: result[name] for name in (*NAMES, "total_input_tokens")}


def judge(ours: list[float], theirs: list[float]) -> dict[str, Any]:
    """Means, spreads, and whether the means lie within the larger spread of each other."""
    difference = abs(statistics.fmean(ours) - statistics.fmean(theirs))
    spread = max(max(ours) - min(ours), max(theirs) - min(theirs))
    return {
        "ours": statistics.fmean(ours),
        "vllm_bench_serve": statistics.fmean(theirs),
        "difference": difference,
        "spread": spread,
        "agree": difference <= spread,
    }


def main() -> None:
    """Measure, print, judge."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print the figures as JSON as well")
    args = parser.parse_args()
    model = str(embedded.ensure("smollm2-135m-instruct", progress=say))
    spec = ServerSpec(model=model, flags=FLAGS, offline=True)
    runs: dict[str, list[dict[str, float]]] = {"ours": [], "vllm": []}
    with tempfile.TemporaryDirectory() as folder:
        say(f"starting vLLM; then {LOAD}")
        with Server.launch(spec, Path(folder) / "server.log", timeout_s=300) as server:
            for seed, client in enumerate(ORDER):
                runs[client].append(figures(client, server, model, seed))
    verdicts = {
        name: judge([run[name] for run in runs["ours"]], [run[name] for run in runs["vllm"]])
        for name in NAMES
    }
    say()
    for name, verdict in verdicts.items():
        say(
            f"{'agree   ' if verdict['agree'] else 'DISAGREE'} {name:18} "
            f"ours {verdict['ours']:9.2f}  vllm bench serve {verdict['vllm_bench_serve']:9.2f}  "
            f"difference {verdict['difference']:.2f}, spread {verdict['spread']:.2f}"
        )
    if args.json:
        say(json.dumps({"load": LOAD, "runs": runs, "verdicts": verdicts}, indent=2))
    raise SystemExit(0 if all(verdict["agree"] for verdict in verdicts.values()) else 1)


if __name__ == "__main__":
    main()
