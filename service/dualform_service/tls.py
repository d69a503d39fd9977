"""The server's certificate and key."""

from __future__ import annotations

import ssl
from pathlib import Path

import grpc

from dualform.errors import BadInput
from dualform_service.config import ServiceConfig


def server_credentials(config: ServiceConfig) -> grpc.ServerCredentials | None:
    """None where the configuration names no certificate. Raises BadInput where the files cannot be used."""
    if config.certificate is None or config.key is None:
        return None
    certificate = _read(config.certificate, "certificate")
    key = _read(config.key, "key")
    try:
        # gRPC reports an unusable pair as a port it could not bind; OpenSSL says what is wrong.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(config.certificate, config.key, password="")
    except ssl.SSLError as error:
        raise BadInput(
            f"The certificate {config.certificate} and key {config.key} cannot be used together ({error.reason}).",
            hint="Both must be PEM files, the key that of the certificate and without a passphrase.",
            field="certificate",
        ) from None
    return grpc.ssl_server_credentials([(key, certificate)])


def web_context(config: ServiceConfig) -> ssl.SSLContext | None:
    """The same for what speaks HTTP."""
    if server_credentials(config) is None or config.certificate is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(config.certificate, config.key, password="")
    return context


def _read(file: Path, field: str) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise BadInput(f"The {field} file {file} cannot be read: {error.strerror}.", field=field) from None
