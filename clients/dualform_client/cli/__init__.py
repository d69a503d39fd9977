"""The command `dualform`. Commands load the engine, the service and the studies only when they need them."""

from __future__ import annotations

from dualform_client.cli.main import main as main, run as run

__all__ = ["main", "run"]
