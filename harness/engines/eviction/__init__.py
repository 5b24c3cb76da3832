"""Token eviction inside vLLM: keep the sinks and the recent window, give back what lies between.

A plugin of the engine (entry point group ``vllm.general_plugins``), inert unless
``KVBENCH_EVICTION`` is set. ``plugin`` is loaded in every vLLM process and imports no vLLM by
itself; ``wiring`` registers the parts: ``spec`` and ``manager`` (scheduler side: which blocks are
freed), ``compaction`` and ``builder`` (worker side: which blocks the kernel reads), one module
per attention backend, ``unwired`` for all others, ``refusals`` for what was never tested.
``evidence`` is for the harness: it finds in the server's log that the rule was in force.
The engine's own files are not touched and nothing of it is replaced behind its back.
"""
