"""Panels as they stand in a file that nobody answers for: what leads nowhere is gone, and names of parts are each
view's own.
"""

from __future__ import annotations

import re
from html.parser import HTMLParser

_NAMED = re.compile(r'\b(id|for|aria-labelledby)="([^"]*)"')
_KEPT = ("card", "chip", "token")
"""Classes of links that say something also where they lead nowhere."""


def standalone(html: str, view: str) -> str:
    """A panel's HTML: without forms and links to what the file does not hold, and with the `view` behind each id."""
    parser = _Standalone(view)
    parser.feed(html)
    parser.close()
    return "".join(parser.parts)


class _Standalone(HTMLParser):
    """What is kept is kept letter by letter."""

    def __init__(self, view: str) -> None:
        super().__init__(convert_charrefs=False)
        self.parts: list[str] = []
        self._view = view
        self._dropped, self._depth = "", 0
        """The element that is left out, and how many of its kind are open in it."""
        self._spans = False
        """Whether the link that is open became a span."""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if self._depth:
            self._depth += tag == self._dropped
            return
        text = self.get_starttag_text() or ""
        if tag == "form":
            self._dropped, self._depth = tag, 1
            return
        if tag == "a" and not (dict(attrs).get("href") or "").startswith("#"):
            classes = (dict(attrs).get("class") or "").split()
            if not any(name in classes for name in _KEPT):
                self._dropped, self._depth = tag, 1
                return
            self._spans = True
            text = re.sub(r'\s(href|aria-current|tabindex)="[^"]*"', "", "<span" + text[2:])
        self.parts.append(_NAMED.sub(rf'\1="\2-{self._view}"', text))

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        hit = "hit" in (dict(attrs).get("class") or "").split()  # where a script would take hold of a figure
        if not self._depth and not hit:
            self.parts.append(self.get_starttag_text() or "")

    def handle_endtag(self, tag: str) -> None:
        if self._depth:
            self._depth -= tag == self._dropped
        elif tag == "a" and self._spans:
            self._spans = False
            self.parts.append("</span>")
        else:
            self.parts.append(f"</{tag}>")

    def handle_data(self, data: str) -> None:
        self._text(data)

    def handle_entityref(self, name: str) -> None:
        self._text(f"&{name};")

    def handle_charref(self, name: str) -> None:
        self._text(f"&#{name};")

    def _text(self, text: str) -> None:
        if not self._depth:
            self.parts.append(text)
