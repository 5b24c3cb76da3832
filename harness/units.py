"""Names for the units used inside, and every conversion between a number and its text.

Inside, time is in seconds, memory in bytes, lengths in tokens, fractions in 0–1. Milliseconds,
GiB and per cent exist only here. GiB (2**30) is for memory, GB (10**9) for bandwidth.
Unknown is ``None`` and is written as an em dash.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import TypeAlias

Seconds: TypeAlias = float
Bytes: TypeAlias = int
Tokens: TypeAlias = int
Fraction: TypeAlias = float

DASH = "—"

KIB: Bytes = 1 << 10
MIB: Bytes = 1 << 20
GIB: Bytes = 1 << 30

_BYTE_UNITS: dict[str, int] = {
    "": 1,
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "kib": 1 << 10,
    "mib": 1 << 20,
    "gib": 1 << 30,
    "tib": 1 << 40,
}
_TOKEN_UNITS: dict[str, int] = {"": 1, "k": 1 << 10, "m": 1 << 20}
_QUANTITY = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*", re.IGNORECASE)


def _scaled(text: str, units: dict[str, int], kind: str, example: str) -> int:
    match = _QUANTITY.fullmatch(text)
    if match is None or match[2].lower() not in units:
        legal = ", ".join(unit for unit in units if unit)
        raise ValueError(
            f"{text!r} is not a {kind}; write a number with one of {legal}, as {example}"
        )
    scaled = float(match[1]) * units[match[2].lower()]
    if not math.isfinite(scaled):
        raise ValueError(f"{text[:40]!r}… is beyond every {kind}")
    return round(scaled)


def parse_bytes(text: str | int) -> Bytes:
    """Read a memory size: ``120MB`` is 120·10⁶, ``2GiB`` is 2·2³⁰, a bare number is bytes."""
    return (
        text
        if isinstance(text, int)
        else _scaled(text, _BYTE_UNITS, "memory size", "120MB or 2GiB")
    )


def parse_tokens(text: str | int) -> Tokens:
    """Read a length in tokens: ``8k`` is 8,192, ``1m`` is 1,048,576, a bare number is tokens."""
    return (
        text if isinstance(text, int) else _scaled(text, _TOKEN_UNITS, "token count", "8192 or 8k")
    )


def format_bytes(count: float | None, digits: int = 2) -> str:
    """``1073741824`` → ``1.00 GiB``; below 1 KiB whole bytes; None → an em dash."""
    if count is None:
        return DASH
    for size, unit in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if abs(count) >= size:
            return f"{count / size:,.{digits}f} {unit}"
    return f"{count:,.0f} B"


def format_count(count: float | None, digits: int = 0) -> str:
    """``46592`` → ``46,592``; None → an em dash."""
    return DASH if count is None else f"{count:,.{digits}f}"


def counted(count: int | None, noun: str, plural: str | None = None) -> str:
    """``1 prompt``, ``2 prompts``; ``plural`` where an s does not make it: ``loads are``."""
    return f"{format_count(count)} {noun if count == 1 else plural or f'{noun}s'}"


def listed(words: Sequence[str]) -> str:
    """``a``, ``a and b``, ``a, b and c``."""
    return " and ".join(filter(None, [", ".join(words[:-1]), *words[-1:]]))


def format_duration(seconds: Seconds | None) -> str:
    """A latency or a waiting time at a readable scale: ``1.3 ms``, ``2.41 s``, ``3 min 20 s``."""
    if seconds is None:
        return DASH
    if abs(seconds) < 1.0:
        return f"{seconds * 1000:.1f} ms"
    if abs(seconds) < 60:
        return f"{seconds:.2f} s" if abs(seconds) < 10 else f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def format_rate(value: float | None, unit: str, digits: int = 1) -> str:
    """``format_rate(110.04, "tok/s")`` → ``110.0 tok/s``; None → an em dash."""
    return DASH if value is None else f"{value:,.{digits}f} {unit}"


def format_bandwidth(bytes_per_s: float | None) -> str:
    """``2.039e12`` → ``2,039.0 GB/s``; below 1 GB/s in MB/s; None → an em dash."""
    if bytes_per_s is None:
        return DASH
    size, unit = (1e9, "GB/s") if abs(bytes_per_s) >= 1e9 else (1e6, "MB/s")
    return f"{bytes_per_s / size:,.1f} {unit}"


def format_flops_per_s(flops_per_s: float | None, digits: int = 0) -> str:
    """``3.12e14`` → ``312 TFLOP/s``; None → an em dash."""
    return format_rate(None if flops_per_s is None else flops_per_s / 1e12, "TFLOP/s", digits)


def format_significant(value: float | None, digits: int = 3) -> str:
    """``0.024018`` → ``0.024``, ``1e-7`` → ``1e-07``: digits that count; None → an em dash."""
    return DASH if value is None else f"{value + 0.0:.{digits}g}"


def format_percent(fraction: Fraction | None, digits: int = 1) -> str:
    """``0.0512`` → ``5.1 %``; None → an em dash."""
    return DASH if fraction is None else f"{fraction * 100:.{digits}f} %"


def format_change(fraction: Fraction | None, digits: int = 1) -> str:
    """``-0.0512`` → ``-5.1 %``, ``0`` → ``+0.0 %``; None or not finite → an em dash."""
    if fraction is None or not math.isfinite(fraction):
        return DASH
    # A change that rounds to nothing is none: ``-0.0 %`` reads as a loss.
    return f"{round(fraction * 100, digits) + 0.0:+.{digits}f} %"


def format_ratio(ratio: float | None, digits: int = 2) -> str:
    """``1.984`` → ``1.98×``; None or a ratio that is not finite → an em dash."""
    return DASH if ratio is None or not math.isfinite(ratio) else f"{ratio:.{digits}f}×"


def format_tick_ratio(ratio: float) -> str:
    """A round tick of an axis of ratios: ``1×``, ``0.25×``, ``1.02×``."""
    return f"{ratio:g}×"


def format_ratio_range(ratio: float | None, low: float | None, high: float | None) -> str:
    """``1.22× [1.19, 1.25]``: enough digits to tell its ends apart; none where they are one."""
    width = high / low - 1.0 if low and high is not None else None
    if low is None or high is None or (width is not None and width < 1e-6):
        return format_ratio(ratio, _ratio_digits(ratio, None))
    digits = _ratio_digits(ratio, width)
    ends = ", ".join(format_count(end, digits) for end in (low, high))
    return f"{format_ratio(ratio, digits)} [{ends}]"


def _ratio_digits(ratio: float | None, relative_width: float | None) -> int:
    narrow = relative_width is not None and relative_width < 0.02
    return 3 if narrow or (ratio is not None and ratio < 0.1) else 2


def milliseconds(seconds: Seconds | None) -> float | None:
    """Seconds → milliseconds, for exports whose field names end in ``_ms``."""
    return None if seconds is None else seconds * 1000.0


def gibibytes(count: float | None) -> float | None:
    """Bytes → GiB, for chart axes."""
    return None if count is None else count / GIB
