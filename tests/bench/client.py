"""``make bench-client``: what the load client can drive, and how true its stamps are.

Both figures are taken side by side with ``vllm bench serve`` in one run, against the same
stand-in server, each client in a fresh process, in turn (A B B A A B). On a machine with at
least two cores the server and the client get one core each.

Each run waits for an idle machine and is repeated if other processes disturbed it (``quiet``).

* Ceiling: the stand-in answers at once; 32 streams of 256 tokens, 2,000 requests.
* Accuracy: the stand-in sends on a known schedule: first token after 200 ms, then one every
  20 ms; 64 streams at once, 256 requests. What a client reports beyond that is its own error.
  The stand-in says how late it was itself; that share of the error is nobody's.

It prints the figures and exits with 1 if one of the stated limits is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from collections.abc import Iterable
from typing import Any

import numpy as np

from harness.engines import embedded
from tests.bench.ours import measure_apart
from tests.bench.quiet import undisturbed
from tests.bench.vllm_bench_serve import vllm_bench_serve
from tests.standin.process import StandIn, standin_server

TTFT_S, ITL_S = 0.2, 0.02
ORDER = ("ours", "vllm", "vllm", "ours", "ours", "vllm")


def say(text: str = "") -> None:
    """One line on stdout, at once."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def cores() -> tuple[int | None, int | None]:
    """A core for the server and one for the client; None, None if there is only one."""
    usable = sorted(os.sched_getaffinity(0))
    return (usable[0], usable[-1]) if len(usable) > 1 else (None, None)


def run_both(
    server: StandIn, options: dict[str, Any], load: dict[str, int], patience_s: float
) -> dict[str, list]:
    """Three runs of each client, in turn."""
    url = server.url(**options)
    runs = {
        "ours": lambda: measure_apart(cores()[1], url=url, model="standin", **load),
        "vllm": lambda: vllm_bench_serve(
            url.removesuffix("/v1"),
            tokenizer=str(embedded.ensure("smollm2-135m-instruct")),
            served_model="standin",
            cpu=cores()[1],
            **load,
        ),
    }
    results: dict[str, list[dict[str, Any]]] = {"ours": [], "vllm": []}
    for client in ORDER:
        result, others = undisturbed(runs[client], server.process.pid, say, patience_s)
        say(
            f"  {client}: {result['output_throughput']:,.0f} output tokens/s "
            f"(others used {others:.2f} cores)"
        )
        results[client].append({**result, "others_cores": others})
    return results


def ceiling(server: StandIn, patience_s: float) -> dict[str, Any]:
    """Output tokens/s of both clients, medians of three."""
    load = {"prompts": 2000, "concurrency": 32, "input_tokens": 32, "output_tokens": 256}
    results = run_both(server, {}, load, patience_s)
    medians = {
        client: statistics.median(result["output_throughput"] for result in runs)
        for client, runs in results.items()
    }
    return {**medians, "ratio": medians["ours"] / medians["vllm"]}


def accuracy(server: StandIn, patience_s: float) -> dict[str, Any]:
    """Percentiles of TTFT and ITL in ms, medians of three runs; the server's own lateness."""
    load = {"prompts": 256, "concurrency": 64, "input_tokens": 32, "output_tokens": 64}
    results = run_both(server, {"ttft_s": TTFT_S, "itl_s": ITL_S}, load, patience_s)
    figures: dict[str, Any] = {client: _percentiles(runs) for client, runs in results.items()}
    late = np.array(server.get("/lateness")) * 1e3
    figures["server_late_ms"] = {"p50": _at(late, 50), "p99": _at(late, 99)}
    return figures


def _percentiles(runs: Iterable[dict[str, Any]]) -> dict[str, float]:
    each = []
    for run in runs:
        ttft = np.array(run["ttfts"]) * 1e3
        itl = np.concatenate([np.array(gaps) for gaps in run["itls"]]) * 1e3
        each.append(
            {
                "ttft_p50": _at(ttft, 50),
                "ttft_p99": _at(ttft, 99),
                "itl_p50": _at(itl, 50),
                "itl_p99": _at(itl, 99),
            }
        )
    return {name: statistics.median(run[name] for run in each) for name in each[0]}


def _at(values: Any, percentile: float) -> float:
    return float(np.percentile(values, percentile))


def limits(figures: dict[str, Any]) -> list[tuple[str, bool]]:
    """Every limit as a sentence, and whether it was kept."""
    ours, theirs = figures["accuracy"]["ours"], figures["accuracy"]["vllm"]
    due = TTFT_S * 1e3
    kept = [("ceiling at least 1.2 times theirs", figures["ceiling"]["ratio"] >= 1.2)]
    for name in ("ttft_p50", "ttft_p99"):
        fine = abs(ours[name] - due) <= abs(theirs[name] - due) / 2
        kept.append((f"{name}: at most half of their error", fine))
    kept.append(("itl_p50 within 0.5 ms of 20 ms", abs(ours["itl_p50"] - ITL_S * 1e3) <= 0.5))
    kept.append(("itl_p99 within 3 ms of 20 ms", abs(ours["itl_p99"] - ITL_S * 1e3) <= 3.0))
    return kept


def main() -> None:
    """Measure, print, judge."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print the figures as JSON as well")
    parser.add_argument("--patience-s", type=float, default=60, help="wait so long for peace")
    args = parser.parse_args()
    server_cpu, client_cpu = cores()
    say(f"server on core {server_cpu}, clients on core {client_cpu}, load {os.getloadavg()[0]:.1f}")
    figures: dict[str, Any] = {}
    with standin_server() as server:
        if server_cpu is not None:
            os.sched_setaffinity(server.process.pid, {server_cpu})
        say("ceiling: 2,000 requests, 32 streams of 256 tokens, answered at once")
        figures["ceiling"] = ceiling(server, args.patience_s)
        say("accuracy: 256 requests, 64 at once, 64 tokens, 200 ms then every 20 ms")
        figures["accuracy"] = accuracy(server, args.patience_s)
    figures["load_average"] = os.getloadavg()[0]
    _print(figures)
    if args.json:
        say(json.dumps(figures, indent=2))
    kept = limits(figures)
    for sentence, fine in kept:
        say(f"{'kept  ' if fine else 'MISSED'} {sentence}")
    raise SystemExit(0 if all(fine for _, fine in kept) else 1)


def _print(figures: dict[str, Any]) -> None:
    top, exact = figures["ceiling"], figures["accuracy"]
    say()
    say(
        f"ceiling    ours {top['ours']:,.0f}  vllm bench serve {top['vllm']:,.0f} tokens/s, "
        f"ratio {top['ratio']:.2f}"
    )
    for name in ("ttft_p50", "ttft_p99", "itl_p50", "itl_p99"):
        say(
            f"{name:10} ours {exact['ours'][name]:.2f}  vllm bench serve "
            f"{exact['vllm'][name]:.2f} ms"
        )
    late = exact["server_late_ms"]
    say(f"the stand-in itself was late by {late['p50']:.2f} ms (p50), {late['p99']:.2f} ms (p99)")


if __name__ == "__main__":
    main()
