"""A thin gRPC shell over an engine: `serve` for a process of its own, `Server` inside another one.

What is first used is loaded then: the command line's help names settings, and needs no server.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dualform.extras import loaded_on_use

if TYPE_CHECKING:
    from dualform_service.server import Server as Server, serve as serve
    from dualform_service.settings import ServiceConfig as ServiceConfig

__all__ = ["Server", "ServiceConfig", "serve"]

_HOMES = {"Server": "server", "ServiceConfig": "settings", "serve": "server"}
__getattr__ = loaded_on_use(__name__, {name: (f"{__name__}.{home}", name) for name, home in _HOMES.items()})


def __dir__() -> list[str]:
    return __all__
