"""A memory served elsewhere, asked with plain calls."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import grpc

from dualform.methods import Answers
from dualform.questions import Question
from dualform_client.connection import Connection
from dualform_proto.calls import call_of
from dualform_proto.metadata import new_request_id
from dualform_proto.v1.dualform_pb2_grpc import MemoryStub

A = TypeVar("A")


class Client(Answers):
    """Queries a memory on a server. It connects with the first call, and several threads may share it."""

    def __init__(
        self,
        address: str,
        *,
        timeout: float | None = 60.0,
        token: str | None = None,
        tls: bool = False,
        authority: str | Path | None = None,
        certificate: str | Path | None = None,
        key: str | Path | None = None,
        tls_name: str | None = None,
    ) -> None:
        """Set up a connection to a server.

        - `address`: host:port, or host:port/NAME if the server has several memories.
        - `timeout`: seconds for each call.
        - `token`: the bearer token, if the server requires one.
        - `tls`: connect with TLS.
        - `authority`: a PEM file of the certificate authorities to trust.
        - `certificate`, `key`: PEM files of the client, if the server requires them.
        - `tls_name`: the host name in the server's certificate, if it differs from the address, as through a tunnel.

        Raises BadInput for options that do not fit together.
        """
        self.connection = Connection(address, timeout, token, tls, authority, certificate, key, tls_name)
        credentials, options = self.connection.credentials(), self.connection.options()
        self._channel = (
            grpc.insecure_channel(self.connection.address, options)
            if credentials is None
            else grpc.secure_channel(self.connection.address, credentials, options)
        )
        self._stub: Any = MemoryStub(self._channel)

    def __reduce__(self) -> tuple[Callable[[], Client], tuple[()]]:
        return self.connection.made_again(type(self))

    def ask(self, question: Question[A]) -> A:
        """The result of a query given as a value."""
        call = call_of(question)
        request = call.encode_question(question)
        self.connection.check_size(request)
        send, request_id = getattr(self._stub, call.method), new_request_id()
        try:
            metadata = self.connection.metadata(request_id)
            response = send(request, timeout=self.connection.timeout, metadata=metadata)
        except grpc.RpcError as status:
            raise self.connection.error(status, request_id) from None
        except ValueError as error:
            raise self.connection.closed() from error
        return cast("A", call.answer(question, response))

    def close(self) -> None:
        self._channel.close()
