"""The entry point that vLLM loads in each of its processes; does nothing unless asked.

vLLM only logs a plugin whose *import* fails and goes on without it, so nothing that can fail is
imported here; what ``register`` raises ends the process. Not covered: processes on other machines
that do not inherit the variable (the missing log line tells).
"""

from __future__ import annotations

import os
import pkgutil

from harness.specs.eviction import VARIABLE

#: By name, since it imports vLLM: a process that evicts nothing must not pay for it.
_INSTALL = "harness.engines.eviction.wiring:install"


def register() -> None:
    """Put the rule of ``KVBENCH_EVICTION`` in force in this process; safe to call repeatedly.

    Raises:
        InputError: the variable holds no rule.
        EvictionRefused: an engine version that the plugin was not tested on.
    """
    if os.environ.get(VARIABLE, "").strip():
        pkgutil.resolve_name(_INSTALL)()
