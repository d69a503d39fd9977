"""Key sources: the ways to store a layer's keys, by the name that the manifest has for each.

A new one is a file here, which is found by itself: it subclasses KeyFormat (key_format.py) and names it.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pkgutil import iter_modules

from dualform.store.sources.key_format import Geometry, KeyFormat

__all__ = ["FORMATS", "Geometry", "KeyFormat"]

for _found in iter_modules(__path__):
    import_module(f"{__name__}.{_found.name}")

FORMATS: Mapping[str, type[KeyFormat]] = KeyFormat.named
