"""kvbench: what each KV-cache strategy buys on vLLM, measured and held against theory.

The distribution is ``kvbench``; this package is its code. Imports go down only, floor by
floor: ``cli`` → ``run``/``execute``/``report`` → ``engines``/``load``/``telemetry``/``store``
→ ``theory``/``workload``/``analysis`` → ``scenario``/``specs``/``record`` → ``errors``/``units``.
"""

__version__ = "0.1.0"
