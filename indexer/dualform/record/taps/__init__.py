"""Taps of layers. Each kind of module is one file of this room, found by itself: it subclasses ModuleTap and names the
type of module that it taps. Taps of layers that are no modules are given to the recorder, as Recorder(taps=[…]).
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from dualform.record.taps.tap import Call, Listener, ModuleTap, Tap
from dualform.store.layer import Parameter

__all__ = ["Call", "Listener", "ModuleTap", "Parameter", "Tap"]

for _found in iter_modules(__path__):
    import_module(f"{__name__}.{_found.name}")
