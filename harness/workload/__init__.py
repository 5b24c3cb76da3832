"""A trial → its planned requests, complete before anything is sent. Pure: no clock, no I/O.

``tokens`` says which token ids may stand in a prompt, ``lengths`` how long each request is,
``arrivals`` when requests of an open loop are due, ``plan`` puts them together.
"""

from harness.workload.arrivals import arrival_times
from harness.workload.plan import plan
from harness.workload.tokens import SAFE_TOKENS, TokenRange, token_range

__all__ = ["SAFE_TOKENS", "TokenRange", "arrival_times", "plan", "token_range"]
