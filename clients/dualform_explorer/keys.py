"""The keys of a page, as its help names them; `static/keys.js` is what they do."""

from __future__ import annotations

KEYS = (
    ("j  k", "the next example, the one before"),
    ("l  h", "the next layer, the one before"),
    ("/", "add to the mask"),
    ("u", "clear the mask"),
    ("s", "slots, or samples"),
    ("t", "theme"),
    ("?", "these keys"),
)
