"""Facts that ship with the package.

``models.json``: architecture fields of popular models, by Hugging Face id. ``vllm_flags.json``:
the flags of the pinned vLLM (``python -m tests.data.vllm_flags`` makes it).
"""
