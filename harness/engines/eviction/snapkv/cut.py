"""How much of a prompt goes: the one figure that scheduler and worker must agree on.

What a request's first step computes is its prompt, whole, since a prompt is never cut into steps
under this rule (after a preemption: the prompt with the tokens decoded so far). Of the step's whole
blocks the first ``kept`` tokens' worth stay as places for the chosen keys, and the partial block at
the end stays with the tokens in it. Neither side is told the other's view: the scheduler counts the
tokens that it first gave slots to, the worker those of a step before which nothing was computed.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Cut:
    """Tokens that stay of a prompt's whole blocks, and the allocator's block."""

    kept: int
    unit: int

    def whole(self, first_step: int) -> int:
        """Tokens in the whole blocks of a first step."""
        return first_step // self.unit * self.unit

    def dropped(self, first_step: int) -> int:
        """Tokens that go once a first step of as many tokens is computed; whole blocks."""
        return max(self.whole(first_step) - self.kept, 0)

    def freed_blocks(self, first_step: int) -> range:
        """The places of the blocks that go, in the request's list of blocks."""
        first = self.kept // self.unit
        return range(first, max(first_step // self.unit, first))


class FirstSteps:
    """First steps of live requests, by the block that each request's cache begins with.

    That block is the request's own until the request ends and is never freed before, so it names
    the request; a new request that begins with the same block has a first step of its own.
    """

    def __init__(self) -> None:
        self._tokens: dict[int, int] = {}

    def see(self, first_block: int, computed: int, new: int) -> int:
        """Note a row of a batch; tokens of its request's first step, 0 in that step itself.

        Raises:
            RuntimeError: a request whose beginning was never seen; what it keeps is unknown.
        """
        if computed == 0:
            self._tokens[first_block] = new
            return 0
        if first_block not in self._tokens:
            raise RuntimeError(
                "KV eviction by score met a request whose first step it never saw; its blocks "
                "can't be told apart"
            )
        return self._tokens[first_block]
