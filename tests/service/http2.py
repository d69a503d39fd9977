"""HTTP/2 by hand, for callers that no library would let us be: they send halves of messages, and read nothing."""

from __future__ import annotations

import socket
import struct
from types import TracebackType
from typing import NamedTuple, Self

DATA, HEADERS, SETTINGS, PING, GOAWAY, WINDOW_UPDATE = 0, 1, 4, 6, 7, 8
END_STREAM, ACKNOWLEDGED, END_HEADERS = 1, 1, 4
_INITIAL_WINDOW, _FIRST_WINDOW = 4, 65_535


class Frame(NamedTuple):
    kind: int
    flags: int
    stream: int
    content: bytes


class Connection:
    """One connection to a gRPC server without TLS."""

    def __init__(self, address: str, window: int | None = None) -> None:
        """`window`: bytes of a stream that the server may send; None for HTTP/2's own 65,535."""
        host, _, port = address.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), timeout=60)
        settings = b"" if window is None else struct.pack("!HI", _INITIAL_WINDOW, window)
        self.socket.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
        self._send(SETTINGS, 0, 0, settings)
        self._streams = 1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.socket.close()

    def call(self, path: str, token: str | bytes | None = None) -> int:
        """Sends a call's headers and nothing more; returns its stream. A token of bytes need be no text."""
        stream, self._streams = self._streams, self._streams + 2
        headers = {
            ":method": "POST",
            ":scheme": "http",
            ":path": path,
            ":authority": "test",
            "content-type": "application/grpc",
            "te": "trailers",
        }
        block = b"".join(b"\0" + _text(name) + _text(value) for name, value in headers.items())
        if token is not None:
            data = token.encode() if isinstance(token, str) else token
            block += b"\0" + _text("authorization") + _text(b"Bearer " + data)
        self._send(HEADERS, END_HEADERS, stream, block)
        return stream

    def message(self, stream: int, content: bytes, size: int | None = None) -> None:
        """Sends a message, of which `size` bytes are promised, and ends the stream where all of them are there."""
        size = len(content) if size is None else size
        prefixed = b"\0" + struct.pack("!I", size) + content
        for start in range(0, len(prefixed), 1 << 14):
            last = start + (1 << 14) >= len(prefixed) and size == len(content)
            self._send(DATA, END_STREAM if last else 0, stream, prefixed[start : start + (1 << 14)])

    def fill(self, stream: int, most: int) -> int:
        """Sends zeros on a call's stream until the server takes no more for a second; returns how many it took. To be
        called on a new connection.
        """
        taken, own, first, all_ = 0, _FIRST_WINDOW, _FIRST_WINDOW, _FIRST_WINDOW
        self.socket.settimeout(1.0)
        while taken < most:
            if size := min(own, all_, most - taken, 1 << 14):
                self._send(DATA, 0, stream, bytes(size))
                taken, own, all_ = taken + size, own - size, all_ - size
                continue
            try:
                head = self._read(9)
            except TimeoutError:
                break
            kind, flags, of, content = head[3], head[4], head[5:], self._read(int.from_bytes(head[:3], "big"))
            if kind == WINDOW_UPDATE and any(of):
                own += int.from_bytes(content, "big")
            elif kind == WINDOW_UPDATE:
                all_ += int.from_bytes(content, "big")
            elif kind == SETTINGS and not flags & ACKNOWLEDGED:
                said = dict(struct.iter_unpack("!HI", content))
                own, first = own + said.get(_INITIAL_WINDOW, first) - first, said.get(_INITIAL_WINDOW, first)
                self._send(SETTINGS, ACKNOWLEDGED, 0, b"")
            elif kind == PING and not flags & ACKNOWLEDGED:
                self._send(PING, ACKNOWLEDGED, 0, content)
        return taken

    def frames(self) -> list[Frame]:
        """Reads on until a stream ends, and returns what came; empty where the server has shut the connection."""
        found = list[Frame]()
        while True:
            try:
                head = self._read(9)
                kind, flags, stream = head[3], head[4], int.from_bytes(head[5:], "big") & 0x7FFFFFFF
                found.append(Frame(kind, flags, stream, self._read(int.from_bytes(head[:3], "big"))))
            except (EOFError, ConnectionError):
                return []
            if kind == SETTINGS and not flags & ACKNOWLEDGED:
                self._send(SETTINGS, ACKNOWLEDGED, 0, b"")
            if kind in (HEADERS, DATA) and flags & END_STREAM:
                return found

    def _send(self, kind: int, flags: int, stream: int, content: bytes) -> None:
        self.socket.sendall(
            struct.pack("!I", len(content))[1:] + bytes([kind, flags]) + struct.pack("!I", stream) + content
        )

    def _read(self, size: int) -> bytes:
        found = b""
        while len(found) < size:
            part = self.socket.recv(size - len(found))
            if not part:
                raise EOFError
            found += part
        return found


def _text(text: str | bytes) -> bytes:
    """A string of HPACK, neither indexed nor compressed."""
    data = text.encode() if isinstance(text, str) else text
    assert len(data) < 127
    return bytes([len(data)]) + data
