"""Damage to files: bits that flip, ends that are cut off, zeros where something was."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from hypothesis import strategies as st

ZEROED = 3000


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
