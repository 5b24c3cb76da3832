"""Notices a server that takes requests and answers nothing, before every request has to time out.

Method: a request that got no chunk within its whole time limit, while no chunk of any other
request arrived since it was sent either, is proof that nobody is answered any more: a queue that
is merely long would have moved. One such request is enough; to send the next ones would cost the
same time limit again, each. Not covered: servers that are slow but alive.
"""

from __future__ import annotations

from dataclasses import dataclass

from harness.load.player import TIMED_OUT
from harness.load.target import LoadProgress
from harness.record import Phase, RequestRecord
from harness.units import Seconds


@dataclass(slots=True)
class Silence:
    """Watches one load; ``reason`` says why it is of no use to go on, None while it is."""

    timeout_s: Seconds
    reason: str | None = None
    _heard_s: Seconds = float("-inf")
    _phase: Phase | None = None
    _chunks: int = 0

    def see(self, progress: LoadProgress) -> None:
        """Take in how many chunks have arrived so far."""
        if progress.phase != self._phase:
            self._phase, self._chunks = progress.phase, 0
        if progress.chunks > self._chunks:
            self._heard_s = progress.t_s
        self._chunks = progress.chunks

    def take(self, record: RequestRecord) -> None:
        """Take in a request that ended."""
        if record.last_chunk_s is not None:
            self._heard_s = max(self._heard_s, record.last_chunk_s)
            return
        timed_out = (record.error or "").startswith(TIMED_OUT)
        if timed_out and self._heard_s <= record.sent_s:
            what = "warm-up request" if record.phase == "warmup" else "request"
            self.reason = (
                f"the server is up but silent: a {what} got no token within {self.timeout_s:g} s, "
                "and no other request did either (raise timeouts.request_s if it only needs "
                "longer)"
            )
