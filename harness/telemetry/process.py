"""Resident memory of a server's process tree, through psutil.

Method: the tree is the root process and all its descendants, found by parent process id. Walking
every process of the machine is far dearer than reading the few that we want, so the source walks
the tree every five seconds and reads each member's RSS at every reading.

The sum of RSS counts a page once for every process that maps it. vLLM's API server, engine core
and workers all map the same libraries, so the sum is too high by those shared pages (3,370 MiB
against 2,972 MiB for the CPU build with a pool of 1 GiB). The exact alternative (PSS) makes the
kernel walk the engine's page tables under a lock that its page faults want, 45 ms there against
0.1 ms; so it is not read at all.

Not covered: processes that left the tree because their parent died (they are adopted by init),
memory swapped out, and memory of the page cache.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import psutil

from harness.record import ProcessSample
from harness.telemetry.source import Problems
from harness.units import Bytes, Seconds

TREE_REFRESH_S: Seconds = 5.0
#: How vLLM names its worker processes in the process list.
WORKER_TITLE = "VLLM::Worker"


def _tree(root_pid: int) -> tuple[psutil.Process, ...]:
    """The root and its living descendants; empty if the root is gone."""
    try:
        root = psutil.Process(root_pid)
        if root.status() == psutil.STATUS_ZOMBIE:
            return ()
        return (root, *root.children(recursive=True))
    except psutil.Error:
        return ()


def tree_pids(root_pid: int) -> frozenset[int]:
    """Process ids of ``root_pid`` and all its descendants; empty if it is not running."""
    return frozenset(process.pid for process in _tree(root_pid))


def _total(
    processes: Iterable[psutil.Process], measure: Callable[[psutil.Process], int]
) -> tuple[Bytes | None, int]:
    """Sum ``measure`` over those that can be read: (bytes, how many); None if there are none.

    A process that ends between the walk and the reading holds nothing any more, so it is left
    out. One that may not be read makes the sum unknown.
    """
    total, count = 0, 0
    for process in processes:
        try:
            total += measure(process)
        except psutil.NoSuchProcess:
            continue
        except psutil.AccessDenied:
            return None, count
        count += 1
    return (total if count else None), count


def _rss(process: psutil.Process) -> Bytes:
    rss: int = process.memory_info().rss
    return rss


def tree_rss_bytes(root_pid: int) -> Bytes | None:
    """Summed RSS of the tree in bytes; shared pages count once per process. None if unreadable."""
    return _total(_tree(root_pid), _rss)[0]


def _anonymous(process: psutil.Process) -> Bytes:
    memory = process.memory_info()
    anonymous: int = memory.rss - memory.shared
    return anonymous


def worker_bytes(root_pid: int) -> Bytes | None:
    """Anonymous memory of the engine's worker processes: tensors, not mapped files or libraries.

    On the CPU build the workers hold the weights and the KV pool. None where there is no worker
    or the system does not tell shared from private pages (Linux does).
    """
    workers = [process for process in _tree(root_pid) if _is_worker(process)]
    try:
        return _total(workers, _anonymous)[0]
    except AttributeError:
        return None


def listens(root_pid: int, port: int) -> bool | None:
    """Whether a process of the tree listens on a TCP port; None where the system won't tell."""
    for process in _tree(root_pid):
        try:
            for connection in process.net_connections(kind="tcp"):
                if connection.status == psutil.CONN_LISTEN and connection.laddr.port == port:
                    return True
        except psutil.NoSuchProcess:
            continue
        except psutil.Error:
            return None
    return False


def _is_worker(process: psutil.Process) -> bool:
    try:
        return any(word.startswith(WORKER_TITLE) for word in process.cmdline()[:1])
    except psutil.Error:
        return False


class ProcessSource:
    """Reads the summed RSS of the tree under ``root_pid``; unknown once the tree is gone."""

    def __init__(self, root_pid: int) -> None:
        self.problems = Problems()
        self._root_pid = root_pid
        self._processes: tuple[psutil.Process, ...] = ()
        self._walked_at_s: Seconds | None = None

    def read(self, now: Seconds) -> list[ProcessSample]:
        """One sample; ``processes`` counts those whose memory is in the sum."""
        if self._walked_at_s is None or now - self._walked_at_s >= TREE_REFRESH_S:
            self._processes = _tree(self._root_pid)
            self._walked_at_s = now
        rss_bytes, count = _total(self._processes, _rss)
        if rss_bytes is None:
            self.problems.note(f"no memory of process {self._root_pid} could be read; is it gone?")
        return [ProcessSample(t_s=now, rss_bytes=rss_bytes, processes=count)]

    def close(self) -> None:
        """Forget the tree; nothing of it was held open."""
        self._processes = ()
