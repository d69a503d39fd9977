"""`python -m dualform_client.cli`, for when the command itself is not on the path."""

from __future__ import annotations

from dualform_client.command import run

if __name__ == "__main__":
    run()
