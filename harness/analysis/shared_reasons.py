"""Why several variants have no figures, told once where the reason is one.

Method: reasons are one if they are the same words, or differ in the variant's own name alone. Not
covered: what a sentence makes of them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Reason:
    """Variants of one reason, told in the words of the first; does it name that one?"""

    text: str
    variants: tuple[str, ...]
    names_the_first: bool

    @property
    def head(self) -> tuple[str, ...]:
        """The variants that ``text`` holds for word by word."""
        return self.variants[:1] if self.names_the_first else self.variants

    @property
    def likewise(self) -> tuple[str, ...]:
        """The variants that it holds for once their own name is put in."""
        return self.variants[len(self.head) :]


def by_reason(reasons: Mapping[str, str]) -> tuple[Reason, ...]:
    """Variant → why, gathered by the reason, in the order of their first variants."""
    alike: dict[str, list[str]] = {}
    words = {name: _without(name, why) for name, why in reasons.items()}
    for name, why in reasons.items():
        # The same words are one reason, even where they hold the name of one of the variants.
        same = next((names for names in alike.values() if reasons[names[0]] == why), None)
        (alike.setdefault(words[name], []) if same is None else same).append(name)
    return tuple(
        Reason(
            text=reasons[names[0]],
            variants=tuple(names),
            names_the_first=any(reasons[name] != reasons[names[0]] for name in names),
        )
        for names in alike.values()
    )


def _without(name: str, why: str) -> str:
    return re.sub(rf"(?<!\w){re.escape(name)}(?!\w)", "\0", why)
