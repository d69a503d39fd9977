"""Damage to files: bits that flip, ends that are cut off, zeros where something was."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import xxhash
from hypothesis import strategies as st

ZEROED = 3000
_PREFIX = struct.Struct("<8sQ16s")


def flipped(content: bytes, bit: int) -> bytes:
    """The content with one bit turned; bits of the whole content are counted, -1 is of the last byte."""
    damaged = bytearray(content)
    damaged[bit // 8] ^= 1 << (bit % 8)
    return bytes(damaged)


def flip(file: Path, byte: int = -1) -> None:
    """Turns the lowest bit of one byte of a file."""
    content = file.read_bytes()
    file.write_bytes(flipped(content, 8 * (byte % len(content))))


def _cut(content: bytes, bit: int) -> bytes:
    return content[: bit // 8]


def _zeroed(content: bytes, bit: int) -> bytes:
    start, end = bit // 8, min(bit // 8 + ZEROED, len(content))
    return content[:start] + bytes(end - start) + content[end:]


_KINDS: tuple[Callable[[bytes, int], bytes], ...] = (flipped, _cut, _zeroed)


@st.composite
def damaged(draw: st.DrawFn, content: bytes) -> bytes:
    """The content with damage of some kind at some place."""
    return draw(st.sampled_from(_KINDS))(content, draw(st.integers(0, 8 * len(content) - 1)))


def rewrite_derived(file: Path, change: Callable[[dict[str, Any], list[bytes]], None]) -> None:
    """Changes what a derived file says and its parts, and writes it again with checksums that are right."""
    content = file.read_bytes()
    magic, length, _ = _PREFIX.unpack_from(content)
    said, parts, place = json.loads(content[_PREFIX.size : _PREFIX.size + length]), list[bytes](), _PREFIX.size + length
    for size in said["sizes"]:
        place += -place % 64
        parts.append(content[place : place + size])
        place += size
    before = parts.copy()
    change(said, parts)
    if parts != before:
        said["sizes"] = [len(part) for part in parts]
    said["checksums"] = [xxhash.xxh3_128_hexdigest(part) for part in parts]
    text = json.dumps(said).encode()
    found = bytearray(_PREFIX.pack(magic, len(text), xxhash.xxh3_128_digest(text)) + text)
    for part in parts:
        found += bytes(-len(found) % 64) + part
    file.write_bytes(found)
