"""The Hugging Face hub as a door: a model's ``config.json``, from its local cache or the network.

Only the configuration is asked for, never weights. The hub's own settings are honoured
(``HF_HUB_OFFLINE``, ``HF_HOME``, ``HF_TOKEN``); nothing of them is stored or printed.
"""

from __future__ import annotations

import functools
import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness.errors import NotFound
from harness.units import Seconds

TIMEOUT_S: Seconds = 5.0


def is_path(name: str) -> bool:
    """Whether this can only be meant as a place on the disk, so that no hub is asked."""
    return name.startswith(("/", "./", "../", "~"))


def fetch_config(name: str) -> Mapping[str, Any]:
    """Return the configuration of a hub id.

    Raises:
        NotFound: no such model, no access to it, or no hub in reach and nothing cached.
    """
    try:
        from huggingface_hub import hf_hub_download
    except ImportError:
        raise _not_found(name, "huggingface_hub is not installed") from None
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
    try:
        cached_only = not _answers(name)
        path = hf_hub_download(
            name, "config.json", etag_timeout=TIMEOUT_S, local_files_only=cached_only
        )
        config = json.loads(Path(path).read_text(encoding="utf-8"))
    except Exception as error:  # the hub's client raises its own, its transport's and others
        raise _not_found(name, f"{type(error).__name__}") from None
    if not isinstance(config, dict):
        raise _not_found(name, "its config.json is no mapping")
    return config


@functools.cache
def _answers(name: str) -> bool:
    """Whether the hub says anything of this model, be it that there is none.

    Asked once and without the download's own five retries, which take 23 s where there is no
    network.
    """
    from huggingface_hub import get_hf_file_metadata, hf_hub_url
    from huggingface_hub.errors import HfHubHTTPError

    try:
        get_hf_file_metadata(hf_hub_url(name, "config.json"), timeout=TIMEOUT_S)
    except HfHubHTTPError:
        return True
    except Exception:  # its transport's errors, offline mode, a name that is no id
        return False
    return True


def _not_found(name: str, reason: str) -> NotFound:
    return NotFound(
        f"the configuration of {name!r} is not to be had ({reason})",
        next_move="give a local folder or config.json; a gated model needs HF_TOKEN",
    )
