"""Command lines as people read and retype them."""

from __future__ import annotations

import re
import shlex
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path

_PLAIN = re.compile(r"(~/)?[\w@%+=:,./-]+")


def own_program() -> str:
    """How kvbench is typed again: as it was now, where no PATH leads to it (``make setup``)."""
    started = sys.argv[0]
    if Path(started).name != "kvbench" or shutil.which("kvbench") is not None:
        return "kvbench"
    return shell_line([with_tilde(relative_to_here(started))])


def shell_line(words: Iterable[str]) -> str:
    """Join words so that a shell reads them back; a leading ``~/`` stays one it expands."""
    return " ".join(word if _PLAIN.fullmatch(word) else shlex.quote(word) for word in words)


def with_tilde(word: str) -> str:
    """Write the home folder as ``~``: the same path, and nobody's name in a shared report."""
    home = str(Path.home())
    return "~" + word[len(home) :] if home != "/" and word.startswith(home + "/") else word


def relative_to_here(path: str) -> str:
    """A path below the working folder without it (``.venv/bin/python``), others unchanged."""
    here = str(Path.cwd())
    return path[len(here) + 1 :] if path.startswith(here + "/") else path
