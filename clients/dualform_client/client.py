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
from dualform_proto.request_id import made
from dualform_proto.v1.dualform_pb2_grpc import MemoryStub

A = TypeVar("A")


class Client(Answers):
    """Connects with the first call; safe to use from several threads."""

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
        """`address`: host:port, or host:port/NAME for one of several memories. `timeout` in seconds a call;
        `authority`: PEM file of the authorities to trust; `certificate` and `key`: PEM files of one's own, for a server
        that asks for them; `tls_name`: whose certificate it must have, where that is not the address's, as through a
        tunnel. Raises BadInput.
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
        """The answer to a question given as a value."""
        call = call_of(question)
        request = call.encode_question(question)
        self.connection.check_size(request)
        send, request_id = getattr(self._stub, call.method), made()
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
