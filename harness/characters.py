"""Characters that act on a reader's terminal or eye, and the mark that stands in their place.

Method: names, logs, answers and stored files are other people's text. Control characters steer a
terminal, marks of writing direction show a command in another order than it is copied, invisible
ones hide what is said, and half of a surrogate pair can't be written to a file at all: each becomes
U+FFFD. Line ends and tabs stay, and so do the joiners that some scripts and emoji are spelt with.

Not covered: markup, which each output escapes for itself; look-alike letters.
"""

from __future__ import annotations

import re

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"

_ACTING = re.compile(
    "["
    "\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f"  # controls, without tab, line feed, carriage return
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # directions of writing
    "\u00ad\u200b\u2060-\u2065\u206a-\u206f\ufeff\ufff9-\ufffb\U000e0000-\U000e007f"  # invisible
    "\ud800-\udfff"  # halves of a surrogate pair
    "]"
)


def harmless(text: str) -> str:
    """Other people's text for a page or a file: line ends and tabs stay."""
    return _ACTING.sub(REPLACEMENT, text)


def printable(text: str) -> str:
    """The same for a terminal, on which a carriage return would write over what stands there."""
    return harmless(text).replace("\r", REPLACEMENT)
