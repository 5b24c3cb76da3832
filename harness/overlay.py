"""One mapping laid over another: profiles over scenarios, overrides over configurations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def overlay(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Lay ``over`` on ``base``: mappings are merged key by key, all else is replaced."""
    merged = dict(base)
    for key, value in over.items():
        old = merged.get(key)
        if isinstance(old, Mapping) and isinstance(value, Mapping):
            merged[key] = overlay(old, value)
        else:
            merged[key] = value
    return merged
