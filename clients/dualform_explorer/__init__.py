"""The explorer: web pages over a recorded training. See `dualform explore`.

    pages = dualform_explorer.explore("runs/mine", preview=function)     # the same from Python

Importing this package loads no web server. The first call of `explore` does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dualform.extras import loaded_on_use

if TYPE_CHECKING:
    from dualform_explorer.server import explore as explore

__all__ = ["explore"]

__getattr__ = loaded_on_use(__name__, {"explore": (f"{__name__}.server", "explore")})
