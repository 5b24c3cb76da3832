"""The doors through which a running server is watched: NVML, ``/proc``, and ``/metrics``.

Every source answers :class:`harness.telemetry.source.Source` and is read by one
:class:`harness.telemetry.sampler.Sampler` on the clock of the trial.
"""
