"""Turns a GGUF file into a Hugging Face folder; run as a process of its own.

    python -m harness.engines.convert_gguf FOLDER FILE.gguf OUT

Method: transformers reads the GGUF (weights, configuration, tokenizer, chat template), undoes its
quantisation in float32 and stores bfloat16, the type that the engine then loads. The numbers stay
those of the quantised file; nothing is gained back.

A process of its own, because torch takes seconds to load and must never be in the harness, whose
memory and threads are beside what is measured. Not covered: downloading, and code that a model
brings along (none is ever run).
"""

from __future__ import annotations

import sys


def convert(folder: str, file: str, out: str) -> None:
    """Write the model in ``folder/file`` to ``out`` as config, bf16 safetensors and tokenizer."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    # The order and the number of threads change no weight: every value is computed by itself.
    torch.set_num_threads(1)
    model = AutoModelForCausalLM.from_pretrained(
        folder,
        gguf_file=file,
        quantization_config=GgufConfig(dequantize=True),
        dtype=torch.bfloat16,
    )
    model.save_pretrained(out)
    AutoTokenizer.from_pretrained(folder, gguf_file=file).save_pretrained(out)


if __name__ == "__main__":
    convert(*sys.argv[1:])
