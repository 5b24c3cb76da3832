"""Stands where the engine's Python stands: takes vLLM's command line, serves the stand-in.

``KVBENCH_ENGINE_PYTHON`` names the script beside it. It grants a pool as the CPU backend would
for the embedded model (23,040 B per token in 16 bit, half of that in fp8, blocks of 128), prints
the log lines that kvbench reads (that of the eviction plugin among them), and misbehaves as the
environment variable ``FAKE_ENGINE`` says:

- ``log:FILE`` prints a stored log and exits with 1,
- ``slow:SECONDS`` sleeps before it opens the port,
- ``options:…`` are options of the stand-in (``ttft_s=0.01,fail=exit``),
- ``stubborn`` starts a grandchild in the same group that ignores SIGTERM,
- ``unpluggable`` says nothing of a rule of eviction, as an engine without the plugin.

``FAKE_ENGINE_FP8`` does the same for servers with an fp8 cache only. ``FAKE_TOY`` and
``FAKE_TOY_FP8`` say what the model behind it is like (``tests.quality.toy``). It knows overridden
KV heads (``--hf-overrides``), and refuses ``--kv-offloading-size`` as the CPU build does.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from harness.engines.eviction.evidence import in_force_line, snapkv_line
from harness.specs.eviction import EvictionRule, rule_from_env
from tests.standin import server

BYTES_PER_TOKEN = {"auto": 23_040, "fp8": 11_520, "fp8_e4m3": 11_520, "fp8_e5m2": 11_520}
BLOCK = 128
DEFAULT_POOL = 1 << 30
LOGS = Path(__file__).resolve().parents[1] / "data" / "server_logs"


def main() -> None:
    """Serve, or fail as told."""
    parser = argparse.ArgumentParser(prog="api_server.py")
    parser.add_argument("--model", required=True)
    parser.add_argument("--served-model-name", required=True)
    parser.add_argument("--host", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--max-model-len", type=int, default=8192)
    parser.add_argument("--kv-cache-dtype", default="auto", choices=BYTES_PER_TOKEN)
    parser.add_argument("--kv-cache-memory-bytes", type=int, default=DEFAULT_POOL)
    parser.add_argument("--disable-uvicorn-access-log", action="store_true")
    parser.add_argument("--hf-overrides", type=json.loads, default={})
    parser.add_argument("--load-format")
    parser.add_argument("--kv-offloading-size", type=float)
    for flag in ("enforce-eager", "enable-prefix-caching", "enable-prompt-tokens-details"):
        parser.add_argument(f"--{flag}", action=argparse.BooleanOptionalAction)
    parser.add_argument("--block-size", type=int, default=BLOCK)
    for flag in ("gpu-memory-utilization", "max-num-batched-tokens", "max-num-seqs"):
        parser.add_argument(f"--{flag}")
    parser.add_argument("--attention-backend")
    args = parser.parse_args(sys.argv[3:])
    if args.kv_offloading_size is not None:
        # What the real engine does on a CPU.
        sys.stderr.write((LOGS / "offload_on_cpu.log").read_text(encoding="utf-8"))
        sys.exit(1)
    told = os.environ.get("FAKE_ENGINE", "")
    if args.kv_cache_dtype != "auto":
        told = os.environ.get("FAKE_ENGINE_FP8", told)
        os.environ["FAKE_TOY"] = os.environ.get("FAKE_TOY_FP8", os.environ.get("FAKE_TOY", ""))
    serve(args, told)


def serve(args: argparse.Namespace, told: str) -> None:
    """Do what the environment says, then become the stand-in."""
    kind, _, value = told.partition(":")
    if kind == "log":
        sys.stderr.write(Path(value).read_text(encoding="utf-8"))
        sys.exit(1)
    if kind == "slow":
        time.sleep(float(value))
    if kind == "stubborn":
        child = subprocess.Popen(
            [sys.executable, __file__, "ignore-sigterm"], stdout=subprocess.PIPE
        )
        assert child.stdout is not None
        child.stdout.readline()
    rate = BYTES_PER_TOKEN[args.kv_cache_dtype] * args.hf_overrides.get("num_key_value_heads", 3)
    tokens = args.kv_cache_memory_bytes // (rate // 3 * args.block_size) * args.block_size
    sys.stderr.write(
        f"(EngineCore pid=1) INFO 01-01 00:00:00 [x.py:1] CPU KV cache size: {tokens:,} tokens\n"
    )
    if kind != "unpluggable" and (rule := rule_from_env(os.environ)) is not None:
        line = (
            in_force_line(rule.sinks, 1, rule.window, args.block_size, None)
            if isinstance(rule, EvictionRule)
            else snapkv_line(rule, -(-rule.budget // args.block_size), args.block_size)
        )
        sys.stderr.write(f"(EngineCore pid=1) INFO 01-01 00:00:00 [x.py:1] {line}\n")
    words = ["--host", args.host, "--port", str(args.port), "--model", args.served_model_name]
    words += ["--kv-cache-tokens", str(tokens), "--block-size", str(args.block_size)]
    words += ["--kv-cache-memory-bytes", str(args.kv_cache_memory_bytes)]
    words += ["--max-model-len", str(args.max_model_len)]
    if kind == "options":
        words += ["--options", value]
    sys.argv = ["standin", *words]
    server.main()


if __name__ == "__main__":
    if sys.argv[1:] == ["ignore-sigterm"]:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        time.sleep(120)
    else:
        main()
