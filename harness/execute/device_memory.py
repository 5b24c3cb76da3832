"""What the GPUs hold before a start, with a loaded engine, and after its end.

Method: NVML's bytes in use on the devices that a trial's server sees. The first reading of a run
says what a clean device holds; after each engine's end the next start waits until the devices are
back there, within a tolerance, for a minute at most. Without a GPU nothing is read or waited for.

Not covered: whose memory it is.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from harness.execute.progress import Progress
from harness.record import Environment
from harness.run import VISIBLE_DEVICES
from harness.scenario import Trial
from harness.telemetry import nvml
from harness.units import Bytes, Seconds, format_bytes

#: What a GPU may hold more than before the first start and still count as clean.
CLEAN_TOLERANCE_BYTES: Bytes = 256 << 20
MEMORY_BACK_LIMIT_S: Seconds = 60.0


@dataclass(slots=True)
class DeviceMemory:
    """The memory of a run's GPUs; ``clean_bytes`` is what they held before its first start."""

    environment: Environment
    progress: Progress
    clean_bytes: Bytes | None = None

    def used(self, trial: Trial) -> Bytes | None:
        """Bytes in use on the devices that the trial's server sees; None without a GPU."""
        if not self.environment.gpus:
            return None
        return nvml.device_used_bytes(visible=trial.env.get(VISIBLE_DEVICES))

    def used_before_start(self, trial: Trial) -> Bytes | None:
        """The same; the first of a run says what a clean device holds."""
        used = self.used(trial)
        if self.clean_bytes is None:
            self.clean_bytes = used
        return used

    def await_back(self, trial: Trial) -> Seconds:
        """Wait until the GPUs hold no more than before the first start; say so if they do not."""
        if not self.environment.gpus:
            return 0.0
        began = time.monotonic()
        while True:
            used = self.used(trial)
            waited_s = time.monotonic() - began
            if used is None or used <= (self.clean_bytes or 0) + CLEAN_TOLERANCE_BYTES:
                return waited_s
            if waited_s > MEMORY_BACK_LIMIT_S:
                self.progress.warn(
                    f"the engine is gone but the GPU still holds {format_bytes(used)}; the next "
                    "start is not from a clean device"
                )
                return waited_s
            time.sleep(0.5)
