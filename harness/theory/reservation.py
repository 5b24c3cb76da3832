"""How much of whole-length reservations stays empty, by the lengths of the requests alone.

Method: a request holds its prompt and, on average over its decode, half its output, for a time
proportional to its output; requests in flight are met in proportion to that time. A reservation
is as long as the longest request allowed, whatever its own needs.

Source: the chapter's claim C6. Not covered: the time in which a prompt is computed, and
reservations that grow in steps.
"""

from __future__ import annotations

from collections.abc import Sequence

from harness.units import Fraction, Tokens


def stored_on_average(lengths: Sequence[tuple[Tokens, Tokens]]) -> float:
    """Tokens that a request in flight stores on average; ``lengths`` are (prompt, output)."""
    weight = sum(output for _, output in lengths)
    held = sum(output * (prompt + output / 2) for prompt, output in lengths)
    return held / weight if weight else 0.0


def unused_share(lengths: Sequence[Tokens], reserved_each: Tokens) -> Fraction:
    """Share of equal reservations that requests of these lengths leave empty."""
    return 1.0 - sum(lengths) / (reserved_each * len(lengths))
