"""Certificates, their keys and authorities as PEM files: what either end of the wire speaks TLS with."""

from __future__ import annotations

import ssl
from contextlib import suppress
from pathlib import Path
from typing import Any

from dualform.errors import BadInput


def read_pair(certificate: str | Path, key: str | Path) -> tuple[bytes, bytes]:
    """A certificate's chain and its key. Raises BadInput where the files cannot be read, or not be used together."""
    read = _read(certificate, "certificate", "certificate"), _read(key, "key", "key")
    try:
        # gRPC reports an unusable pair as a port it could not bind, or a server that is not there; OpenSSL says why.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, password="")
    except ssl.SSLError as error:
        raise BadInput(
            f"The certificate {certificate} and key {key} cannot be used together ({error.reason}).",
            hint="Both must be PEM files, the key that of the certificate and without a passphrase.",
            field="certificate",
        ) from None
    return read


def names_of(certificate: str | Path, key: str | Path) -> tuple[str, ...]:
    """The names and addresses that a certificate is for, as it lists them. Raises BadInput as `read_pair` does, and for
    a certificate that does not hold now.
    """
    read_pair(certificate, key)
    # Python tells what stands in a certificate only to the client of a handshake that it is at home in.
    server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    server.load_cert_chain(certificate, key, password="")
    client.check_hostname = False
    client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    client.load_verify_locations(cafile=certificate)
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ours = client.wrap_bio(to_client, to_server)
    theirs = server.wrap_bio(to_server, to_client, server_side=True)
    try:
        for one in (ours, theirs, ours):
            with suppress(ssl.SSLWantReadError):
                one.do_handshake()
    except ssl.SSLError as error:
        raise BadInput(f"The certificate {certificate} does not hold ({error.reason}).", field="certificate") from None
    said: Any = ours.getpeercert()
    return tuple(value for kind, value in said.get("subjectAltName", ()) if kind in ("DNS", "IP Address"))


def read_authorities(file: str | Path, field: str = "authority") -> bytes:
    """Certificates to trust. Raises BadInput where the file cannot be read or holds none."""
    data = _read(file, "authority", field)
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cafile=file)
    except ssl.SSLError as error:
        raise BadInput(
            f"The authority file {file} holds no certificate that can be used ({error.reason}).",
            hint="It must be a PEM file of one certificate or several.",
            field=field,
        ) from None
    return data


def _read(file: str | Path, what: str, field: str) -> bytes:
    try:
        return Path(file).read_bytes()
    except OSError as error:
        raise BadInput(f"The {what} file {file} cannot be read: {error.strerror}.", field=field) from None
