"""Eviction by score (SnapKV): of each prompt the tokens stay that its last ones attend to most.

The same seams as for sinks and window. ``scoring`` is the choice and ``cut`` the count, both
arithmetic; ``spec`` and ``manager`` (scheduler) free as many blocks as the rule's count says,
``builder`` and ``cpu_attn`` (worker) choose, move what stays to the front and show the kernel what
is left. Only the count has to agree between them, and it follows from lengths.
"""
