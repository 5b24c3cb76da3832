"""The three standard streams, made safe for whatever a shell, a service or a cron job hands us.

Method: a stream that is closed is opened on the null device, lest the first file that we open
takes its number and catches what is printed; a character that the terminal's encoding lacks is
replaced instead of ending the program. Not covered: characters that steer a terminal
(``characters``).
"""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path


def secure() -> None:
    """Make the standard streams of this process safe to write to; call it first of all."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            # The lowest free number is taken, which is this one.
            os.open(os.devnull, os.O_RDWR)
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def abandon() -> None:
    """Point the standard output nowhere, so that Python's last flush of it can't fail."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, stream.fileno())
            os.close(null)
