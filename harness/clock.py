"""The one clock of a trial: monotonic seconds since its start.

``time.monotonic`` is shared by all processes of a machine on Linux, so records that several
processes took on the same ``zero`` can be merged without translation.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from harness.units import Seconds


@dataclass(frozen=True, slots=True)
class Clock:
    """Seconds since ``zero``, a reading of ``time.monotonic``."""

    zero: float = field(default_factory=time.monotonic)

    def now(self) -> Seconds:
        """Seconds since the start of the trial."""
        return time.monotonic() - self.zero
