"""Generates with transformers in a process of its own, and tells when each token was there.

    python -m harness.engines.reference_child      (settings and requests as JSON lines on stdin)

Method: one request at a time, batch 1, greedy, exactly as many tokens as asked for, through the
model's own ``forward`` with logits for the last position alone. What differs is only where keys
and values come from: ``none`` feeds the whole sequence again for every token, ``growing`` keeps
them in a ``DynamicCache`` (concatenated, so exactly as long as the sequence), ``static`` in a
``StaticCache`` that reserves its whole length at the first step. A token's time is taken once its
id has left the device. The bytes of a cache are those of its tensors' storage, not of their shape.

Not covered: batching, sampling, ``generate`` and its logits processors, ``torch.compile``. While a
growing cache is concatenated, one layer's old and new tensors exist side by side; the bytes are
read after that. This file imports nothing of kvbench, so that any Python with transformers runs it.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from typing import IO, Any

#: Tokens between two readings of a cache's storage; the first and the last are always read.
READ_EVERY = 16
#: Short enough for any reservation, long enough to have taken both kinds of step.
WARM_UP_PROMPT, WARM_UP_OUTPUT = 2, 2
_PR_SET_PDEATHSIG = 1


def end_with_parent() -> None:
    """Linux: let the kernel end this process with its parent, in whatever way that dies."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def private_output() -> IO[str]:
    """The real standard output, for events; whatever libraries print goes to the log instead."""
    events = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return events


def load(settings: dict[str, Any]) -> Any:
    """Load the model onto its device, in evaluation mode."""
    import torch
    from transformers import AutoModelForCausalLM

    if settings["threads"] is not None:
        torch.set_num_threads(settings["threads"])
    model = AutoModelForCausalLM.from_pretrained(
        settings["model"],
        dtype=settings["dtype"],
        attn_implementation=settings["attention"],
        local_files_only=settings["offline"],
        trust_remote_code=False,
    )
    return model.to(settings["device"]).eval()


def facts(model: Any) -> dict[str, Any]:
    """What was loaded, as libraries and tensors tell it."""
    import torch
    import transformers

    return {
        "transformers": transformers.__version__,
        "torch": torch.__version__,
        "dtype": str(model.dtype).removeprefix("torch."),
        "device": str(model.device),
        "threads": torch.get_num_threads(),
        "attention": model.config._attn_implementation,
        "weights_bytes": sum(
            {
                p.untyped_storage().data_ptr(): p.untyped_storage().nbytes()
                for p in model.parameters()
            }.values()
        ),
    }


def new_cache(model: Any, settings: dict[str, Any]) -> Any:
    """An empty cache of the kind asked for; None where nothing is kept."""
    from transformers import DynamicCache, StaticCache

    if settings["cache"] == "static":
        return StaticCache(config=model.config, max_cache_len=settings["max_cache_len"])
    return DynamicCache(config=model.config) if settings["cache"] == "growing" else None


def storage_bytes(cache: Any) -> int:
    """Bytes of the storage behind all keys and values, each storage counted once."""
    held = {}
    for layer in cache.layers if cache is not None else ():
        if layer.is_initialized:
            for tensor in (layer.keys, layer.values):
                storage = tensor.untyped_storage()
                held[storage.data_ptr()] = storage.nbytes()
    return sum(held.values())


def generate(
    model: Any, prompt: list[int], output_tokens: int, settings: dict[str, Any]
) -> Iterator[dict[str, Any]]:
    """Yield an event per token: its id, its time, tokens in the sequence, bytes of the cache."""
    import torch

    cache = new_cache(model, settings)
    sequence = torch.tensor([prompt], device=model.device)
    fed = sequence
    for number in range(output_tokens):
        logits = model(
            input_ids=fed, past_key_values=cache, use_cache=cache is not None, logits_to_keep=1
        ).logits
        token = logits[:, -1].argmax(dim=-1, keepdim=True)
        event = {"token": int(token), "t": time.monotonic()}
        if number % READ_EVERY == 0 or number == output_tokens - 1:
            event |= {"sequence_tokens": sequence.shape[1], "cache_bytes": storage_bytes(cache)}
        yield event
        sequence = torch.cat([sequence, token], dim=1)
        fed = token if cache is not None else sequence


def serve(model: Any, settings: dict[str, Any], requests: IO[str], events: IO[str]) -> None:
    """Answer requests until the input ends; one that fails is told, and the next one served."""
    import torch

    def tell(event: dict[str, Any]) -> None:
        events.write(json.dumps(event) + "\n")
        events.flush()

    with torch.inference_mode():
        # The first steps of a process pay for kernels that are chosen and buffers that are made.
        for _ in generate(model, [1] * WARM_UP_PROMPT, WARM_UP_OUTPUT, settings):
            pass
    tell({"ready": facts(model)})
    for line in requests:
        request = json.loads(line)
        try:
            with torch.inference_mode():
                steps = generate(model, request["prompt"], request["output_tokens"], settings)
                for event in steps:
                    tell(event)
            tell({"done": request["index"], "prompt_tokens": len(request["prompt"])})
        except (RuntimeError, ValueError, IndexError) as error:
            tell({"failed": request["index"], "error": f"{type(error).__name__}: {error}"})


def main() -> None:
    """Read the settings (the first line), load, serve."""
    end_with_parent()
    events = private_output()
    settings = json.loads(sys.stdin.readline())
    serve(load(settings), settings, sys.stdin, events)


if __name__ == "__main__":
    main()
