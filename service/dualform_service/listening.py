"""Whether an address can be listened on, found out before gRPC tries: it says only that it could not."""

from __future__ import annotations

import os
import socket

from dualform.errors import ServiceError
from dualform_proto.address import Address


def check_free(address: Address, option: str = "--address") -> None:
    """Raises ServiceError with the system's reason where the address cannot be listened on. `option` names another."""
    try:
        places = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise cannot_listen(address, f"the host is unknown: {error.strerror}", option) from None
    for family, kind, protocol, _, place in places:
        with socket.socket(family, kind, protocol) as trial:
            # As gRPC does: connections of an earlier server that are still winding down do not hold the port.
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                trial.bind(place)
            except OSError as error:
                # The system's own words, without what some libraries add to them.
                raise cannot_listen(address, os.strerror(error.errno or 0), option) from None


def cannot_listen(address: Address, reason: str, option: str = "--address") -> ServiceError:
    return ServiceError(
        f"Cannot listen on {address}: {reason}.",
        hint=f"Choose another address, for example with {option} 127.0.0.1:50052.",
        field=option[2:],
    )
