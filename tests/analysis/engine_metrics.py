"""Puts a trial's requests through the arithmetic of the engine's own ``vllm bench serve``.

Called in a child of the tests (``tests.engines.engine_parser``), since importing the engine takes
seconds and vLLM stays out of the tests' own process.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any


def figures(lists: dict[str, list[Any]], duration_s: float) -> dict[str, Any]:
    from vllm.benchmarks.lib.endpoint_request_func import RequestFuncOutput
    from vllm.benchmarks.serve import calculate_metrics

    outputs = []
    for index, error in enumerate(lists["errors"]):
        output = RequestFuncOutput(success=not error)
        output.prompt_len = lists["input_lens"][index] or 0
        output.output_tokens = lists["output_lens"][index]
        output.ttft = lists["ttfts"][index] or 0.0
        output.itl = lists["itls"][index]
        output.latency = lists["latencies"][index] or 0.0
        output.start_time = lists["start_times"][index]
        outputs.append(output)
    metrics, _ = calculate_metrics([], outputs, duration_s, None, [90.0, 99.0], {"ttft": 5000.0})
    return asdict(metrics)
