"""A memory by the place where it is: a folder, answered in this process, or host:port, answered over gRPC."""

from __future__ import annotations

from difflib import get_close_matches
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

from dualform.errors import BadInput, NotAMemory
from dualform.extras import missing_package
from dualform.methods import Answers
from dualform_proto.address import is_served

if TYPE_CHECKING:
    from dualform.query.engine import Bound


def connect(
    target: str | PathLike[str],
    *,
    timeout: float | None = 60.0,
    token: str | None = None,
    tls: bool = False,
    authority: str | Path | None = None,
    certificate: str | Path | None = None,
    key: str | Path | None = None,
    tls_name: str | None = None,
    ram: Bound | None = None,
) -> Answers:
    """Open the memory in a folder, or connect to the server at host:port. Both take the same queries.

    Returns an `Engine` for a folder and a `Client` for a server, each a context manager. `ram` applies only to folders,
    as in `dualform.open`; the other options apply only to servers, as in `Client`. A folder needs the extra [cpu] or
    [gpu].

    Raises NotAMemory or BadInput if the target is neither, and BadInput if `ram` is passed for a server.
    """
    if not isinstance(target, str | PathLike):
        raise BadInput(f"the target is {target!r}.", hint="Name a memory's folder, or host:port.", field="target")
    place = Path(target)
    if not place.exists() and isinstance(target, str):
        if is_served(target):
            if ram is not None:
                raise BadInput(
                    f"ram= limits this process, and {target} answers in another.",
                    hint="Limit the server: dualform serve RUN --ram BYTES.",
                    field="ram",
                )
            from dualform_client.client import Client

            return Client(
                target,
                timeout=timeout,
                token=token,
                tls=tls,
                authority=authority,
                certificate=certificate,
                key=key,
                tls_name=tls_name,
            )
        if not any(mark in target for mark in "/\\."):
            raise BadInput(
                f"{target!r} is neither a folder nor host:port.",
                hint="Name a memory's folder, for example runs/demo, or a server, for example 127.0.0.1:50051.",
                field="target",
            )
    return open_folder(place, ram)


def open_folder(folder: Path, ram: Bound | None = None) -> Answers:
    """The engine over a memory's folder, of bounded `ram` where it is given. Raises NotAMemory, and MissingPackage
    without the engine's extra.
    """
    check_folder(folder)
    try:
        from dualform.query.engine import open_memory
    except ImportError as error:
        raise missing_package(error) or error from None
    return open_memory(folder, ram=ram)


def check_folder(folder: Path) -> None:
    """Raises NotAMemory where there is no such folder."""
    if not folder.exists():
        near = get_close_matches(folder.name, (path.name for path in folder.parent.glob("*/")), 1)
        hint = (
            f"Did you mean {folder.with_name(near[0])}?" if near else "Make one with 'dualform demo --out runs/demo'."
        )
        raise NotAMemory(f"There is no folder {folder}.", hint=hint, field="target")
    if not folder.is_dir():
        raise NotAMemory(f"{folder} is a file; a memory is a folder.", hint="Name its folder.", field="target")
