"""NVIDIA's kvpress on transformers, in an environment of its own, as a second opinion on eviction.

``make kvpress`` builds the environment (its transformers pin conflicts with the engine's) and runs
``child.py`` there. What it measures is cache bytes and perplexity; it is no server, so it never
stands on a throughput axis beside one. Scenarios ask it through ``engines/kvpress.py``.
"""
