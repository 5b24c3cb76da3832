"""The model that a scenario names → what the server is given, and its configuration.

A name is, in this order: an embedded model, a local folder, a Hugging Face id. The configuration
of an id comes from the fields that ship with kvbench, or from the hub where it can be reached.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.engines import embedded, hub
from harness.errors import KvbenchError, NotFound
from harness.specs.model import read_config


@dataclass(frozen=True, slots=True)
class ResolvedModel:
    """``argument`` is what ``--model`` gets; ``config`` is None where nobody knows it.

    ``offline``: everything lies on this machine, so the server needs no hub.
    """

    name: str
    argument: str
    offline: bool
    config: Mapping[str, Any] | None


def resolve(name: str, *, on_progress: Callable[[str], None] = lambda _text: None) -> ResolvedModel:
    """Make the model ready to be served; an embedded one is fetched and converted if need be.

    Raises:
        ModelFetchError: the embedded model can't be prepared.
        NotFound: a name that looks like a path is no folder.
    """
    if name in embedded.EMBEDDED:
        folder = embedded.ensure(name, progress=on_progress)
        return ResolvedModel(name, str(folder), True, read_config(folder))
    return _local_or_hub(name)


def describe(name: str) -> ResolvedModel:
    """The same without preparing anything, for ``kvbench plan``."""
    if name in embedded.EMBEDDED:
        folder = embedded.path(name)
        config = read_config(folder) if folder is not None else read_config(name)
        return ResolvedModel(name, str(folder or name), True, config)
    return _local_or_hub(name)


def _folder(name: str) -> Path | None:
    """The folder of that name; None if there is none or no folder can be called that."""
    try:
        folder = Path(name).expanduser()
        return folder if folder.is_dir() else None
    except (OSError, ValueError, RuntimeError):
        # Longer than a file name may be, or the home of a user that nobody knows.
        return None


def _local_or_hub(name: str) -> ResolvedModel:
    folder = _folder(name)
    if folder is not None:
        return ResolvedModel(name, str(folder.resolve()), True, read_config(folder))
    if hub.is_path(name):
        raise NotFound(
            f"the model folder {name!r} does not exist",
            legal=["an embedded model: " + ", ".join(embedded.EMBEDDED), "a folder", "a hub id"],
        )
    return ResolvedModel(name, name, False, config_of(name))


def config_of(name: str) -> Mapping[str, Any] | None:
    """The configuration of a hub id: shipped, else from the hub, else None."""
    try:
        return read_config(name)
    except NotFound:
        pass
    try:
        return hub.fetch_config(name)
    except KvbenchError:
        return None
