"""The nouns of a load: whom it is played against, how far it has come, how it ended."""

from __future__ import annotations

from dataclasses import dataclass, field

from harness.record import Phase
from harness.units import Seconds, Tokens

#: A text that breaks off with so much of the key was cut off in the middle of it.
_TELLING_CHARS = 6


def hide(text: str, api_key: str | None) -> str:
    """A server's words without the key that it was sent, as ``***``.

    A key that the text breaks off in goes as well, unless a few characters are all there is of it.
    """
    if not api_key:
        return text
    for form in {api_key, api_key.replace("/", "\\/")}:
        text = text.replace(form, "***")
        for end in range(len(form) - 1, _TELLING_CHARS - 1, -1):
            if text.endswith(form[:end]):
                return text[:-end] + "***"
    return text


@dataclass(frozen=True, slots=True)
class Target:
    """An OpenAI-compatible server.

    ``base_url`` ends in ``/v1``; ``timeout_s`` bounds one request from hand-over to last byte.
    ``api_key`` is sent to this server only: it is neither stored, logged nor part of the repr.
    """

    base_url: str
    model: str
    api_key: str | None = field(default=None, repr=False)
    timeout_s: Seconds = 900.0


@dataclass(frozen=True, slots=True)
class LoadProgress:
    """How far a load has come, at ``t_s``; the counts are those of the phase in progress.

    ``chunks`` counts the content chunks received so far, those of unfinished requests included;
    ``output_tokens`` those that the server reported for finished ones.
    """

    t_s: Seconds
    phase: Phase
    requests_total: int
    requests_done: int
    requests_failed: int
    requests_in_flight: int
    chunks: int
    output_tokens: Tokens


@dataclass(frozen=True, slots=True)
class LoadOutcome:
    """The bounds of the measured phase, on the trial's clock.

    ``stopped_early`` is the reason for which the load was cut short, None if it was played out.
    A load that was stopped in its warm-up has no measured phase: both bounds are None.
    """

    load_start_s: Seconds | None
    load_end_s: Seconds | None
    stopped_early: str | None
