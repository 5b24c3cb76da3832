"""Notices other benches of the same user on this machine: two spoil each other's figures.

Method: every bench holds a file under the cache folder with a lock of the system's own, which is
gone with the process however that ends; a file whose lock is held is a bench that still runs. It
gets its name only once it is locked, so that nobody takes it for one that was left behind. Others
are not refused, since on a machine with several GPUs each may have one to itself; whoever finds
another says so and records it.

Not covered: benches of other users, of other cache folders (``KVBENCH_CACHE``), and whatever else
keeps the machine busy.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from harness.engines.embedded import cache_root

if sys.platform != "win32":
    import fcntl

FOLDER = "measuring"
#: Begins the name of a file that is not locked yet.
_UNREADY = "."


@dataclass(slots=True)
class OtherBenches:
    """Who else has been measuring: the runs of the others (scenario/run id), as found."""

    room: Path | None
    own: Path | None
    seen: dict[str, None] = field(default_factory=dict)

    def look(self) -> tuple[str, ...]:
        """Runs that were not there at an earlier look."""
        found = [] if self.room is None else _others(self.room, self.own)
        new = tuple(name for name in dict.fromkeys(found) if name not in self.seen)
        self.seen.update(dict.fromkeys(new))
        return new


@contextlib.contextmanager
def announced(run_folder: Path) -> Iterator[OtherBenches]:
    """Let other benches know of this one for as long as the context is open.

    Where no lock can be had (a cache that can't be written, a file system without locks) nobody
    is found, which is no reason not to measure.
    """
    if sys.platform == "win32":
        yield OtherBenches(None, None)
        return
    with contextlib.ExitStack() as held:
        other_benches = OtherBenches(None, None)
        with contextlib.suppress(OSError):
            room = cache_root() / FOLDER
            room.mkdir(parents=True, exist_ok=True)
            own = room / f"{os.getpid()}-{run_folder.name}"
            unready = own.with_name(f"{_UNREADY}{own.name}")
            handle = held.enter_context(unready.open("w", encoding="utf-8"))
            held.callback(_forget, unready)
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            handle.write(f"{run_folder.parent.name}/{run_folder.name}")
            handle.flush()
            unready.rename(own)
            held.callback(_forget, own)
            other_benches = OtherBenches(room, own)
        yield other_benches


def _others(room: Path, own: Path | None) -> list[str]:
    found: list[str] = []
    if sys.platform == "win32":
        return found
    for path in _files(room):
        if path == own or path.name.startswith(_UNREADY):
            continue
        with contextlib.suppress(OSError), path.open(encoding="utf-8", errors="replace") as handle:
            try:
                # Shared, so that two who look at once don't take each other for its bench.
                fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                found.append(handle.read() or path.name)
                continue
            # Its bench was killed: nobody holds it any more.
            _forget(path)
    return found


def _files(room: Path) -> list[Path]:
    """None where the cache was cleared while this bench ran."""
    try:
        return sorted(room.iterdir())
    except OSError:
        return []


def _forget(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink()
