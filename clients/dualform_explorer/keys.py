"""The keys of a page, as its help names them; `static/keys.js` is what they do."""

from __future__ import annotations

KEYS = (
    ("j  k", "next and previous example"),
    ("l  h", "next and previous layer"),
    ("/", "add to the filter"),
    ("u", "clear the filter"),
    ("s", "slots or samples"),
    ("t", "theme"),
    ("?", "list the keys"),
)
