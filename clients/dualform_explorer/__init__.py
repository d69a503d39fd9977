"""The explorer: web pages over a recorded training. See `dualform explore`.

    pages = dualform_explorer.explore("runs/mine", preview=function)     # the same from Python

Importing this package loads no web server. The first call of `explore` does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dualform.extras import missing_package

if TYPE_CHECKING:
    from dualform_explorer.server import explore as explore

__all__ = ["explore"]


def __getattr__(name: str) -> Any:
    if name != "explore":
        raise AttributeError(f"module 'dualform_explorer' has no attribute {name!r}")
    try:
        from dualform_explorer.server import explore
    except ImportError as error:
        raise missing_package(error) or error from None
    return explore
