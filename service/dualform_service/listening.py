"""Addresses that a server listens at, and their certificates."""

from __future__ import annotations

import os
import socket
import ssl

import grpc

from dualform.errors import ServiceError
from dualform_proto.address import Address
from dualform_proto.pem import read_authorities, read_pair
from dualform_service.config import ServiceConfig


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


def server_credentials(config: ServiceConfig) -> grpc.ServerCredentials | None:
    """None where the configuration names no certificate. Raises BadInput where the files cannot be used."""
    if config.certificate is None or config.key is None:
        return None
    certificate, key = read_pair(config.certificate, config.key)
    if config.client_authority is None:
        return grpc.ssl_server_credentials([(key, certificate)])
    authorities = read_authorities(config.client_authority, "client_authority")
    return grpc.ssl_server_credentials([(key, certificate)], authorities, require_client_auth=True)


def web_context(config: ServiceConfig) -> ssl.SSLContext | None:
    """The same for what speaks HTTP."""
    if server_credentials(config) is None or config.certificate is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(config.certificate, config.key, password="")
    if config.client_authority is not None:
        context.load_verify_locations(cafile=config.client_authority)
        context.verify_mode = ssl.CERT_REQUIRED
    return context
