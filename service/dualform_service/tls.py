"""How the server speaks TLS: its certificate and key, and whose certificates it asks callers for."""

from __future__ import annotations

import ssl

import grpc

from dualform_proto.pem import read_authorities, read_pair
from dualform_service.config import ServiceConfig


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
