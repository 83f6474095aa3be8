"""Stops: texts at which an answer ends, also where they are spread over its parts."""

from __future__ import annotations

from collections.abc import Sequence


class Cutter:
    """Cuts one text, which may come in parts, at the first of some texts.

    That is the one which is complete first, and of several that end at one place the longest: how
    the text comes in parts makes no difference.

    Args:
        stops: none of them is empty; without any, all is let through.

    Attributes:
        has_cut: one of them was there; nothing follows.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = stops
        self._held = ""
        self.has_cut: bool = False

    def take(self, text: str) -> str:
        """Return what is let through; what may be the beginning of a stop is held back."""
        if not self._stops:
            return text
        if self.has_cut:
            return ""
        text = self._held + text
        end = _cut_of(text, self._stops)
        self.has_cut = end is not None
        if end is None:
            end = len(text) - max(_begun(text, stop) for stop in self._stops)
            self._held = text[end:]
        return text[:end]

    def rest(self) -> str:
        """Return what was held back, as the text has ended."""
        held, self._held = self._held, ""
        return "" if self.has_cut else held


def _cut_of(text: str, stops: Sequence[str]) -> int | None:
    """Return where the stop begins that is complete first."""
    found = [(at + len(stop), at) for stop in stops if (at := text.find(stop)) >= 0]
    return min(found)[1] if found else None


def _begun(text: str, stop: str) -> int:
    """Return how many characters at the end of a text may be the beginning of a stop."""
    last = text[max(0, len(text) - len(stop) + 1) :]
    at = last.find(stop[0])
    while at >= 0 and not stop.startswith(last[at:]):
        at = last.find(stop[0], at + 1)
    return len(last) - at if at >= 0 else 0
