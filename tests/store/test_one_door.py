"""Only durable_files.py changes what is on disk: what tests make fail there is all that can fail, but DuckDB."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import dualform.store

PACKAGE = Path(dualform.store.__file__).parent.parent
DOOR = PACKAGE / "store" / "files" / "durable_files.py"
CALLS = {
    "close", "fdatasync", "fsync", "ftruncate", "link", "makedirs", "mkdir", "mkfifo", "mknod", "pwrite", "pwritev",
    "remove", "rename", "renames", "replace", "rmdir", "sendfile", "symlink", "truncate", "unlink", "utime", "write",
    "writev",
}  # fmt: skip
"""Of os."""
IMPORTED = {"PathLike", "fspath"}
METHODS = {
    "hardlink_to", "mkdir", "rename", "rmdir", "symlink_to", "tofile", "touch", "unlink", "write_bytes", "write_text",
}  # fmt: skip
"""Of paths and arrays. Path.replace is told from that of strings by its one argument."""
BESIDE = {
    "store/locks.py": ["os.close"],  # of a folder that is opened for its lock, and read
    "store/files/startup.py": ["open", "os.sendfile"],  # to the null device, so that pages are read
}
"""By file, what it calls once and changes nothing with."""


def changes(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """(line, what) of all in a source that changes the disk, or opens a file for that; also what others are to call."""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    reading = [call.func for call in calls if len(call.args) == 2 and ast.unparse(call.args[1]) == "os.O_RDONLY"]
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(ast.Name("os"), name) if name in CALLS or (name == "open" and node not in reading):
                yield node.lineno, f"os.{name}"
            case ast.Attribute(ast.Name("shutil"), name) if name != "disk_usage":
                yield node.lineno, f"shutil.{name}"
            case ast.Attribute(owner, name) if name in METHODS and ast.unparse(owner) != "os":
                yield node.lineno, f".{name}"
            case ast.ImportFrom("os" | "shutil", names):
                yield from ((node.lineno, f"import {name.name}") for name in names if name.name not in IMPORTED)
            case ast.Call(ast.Attribute(_, "replace"), [_], []):
                yield node.lineno, ".replace"
            case ast.Call(ast.Name("open"), [_, *mode]) if writes(mode, node):
                yield node.lineno, "open"
            case ast.Call(ast.Attribute(owner, "open"), mode) if writes(mode, node) and ast.unparse(owner) != "os":
                yield node.lineno, ".open"


def writes(mode: list[ast.expr], call: ast.Call) -> bool:
    """Whether a file is opened for writing, as its mode says, given in its place or by name."""
    said = mode + [word.value for word in call.keywords if word.arg == "mode"]
    return any(
        isinstance(one, ast.Constant) and isinstance(one.value, str) and set(one.value) & set("wax+") for one in said
    )


@pytest.mark.parametrize("room", ["store", "record", "deletion"])
def test_nothing_else_changes_the_disk(room):
    found = {
        file.relative_to(PACKAGE).as_posix(): sorted(what for _, what in changes(ast.parse(file.read_text("utf-8"))))
        for file in sorted((PACKAGE / room).rglob("*.py"))
        if file != DOOR
    }
    assert {file: own for file, own in found.items() if own} == (BESIDE if room == "store" else {})


def test_what_changes_the_disk_is_seen():
    inside = {what for _, what in changes(ast.parse(DOOR.read_text(encoding="utf-8")))}
    assert {"os.open", "os.writev", "os.fsync", "os.replace", "os.unlink", "os.link", "os.mkdir", "os.close"} <= inside
    source = "os.replace(a, b); p.replace(b); s.replace('a', 'b'); open(p, 'wb'); p.open(mode='a'); open(p); p.mkdir()"
    assert sorted({what for _, what in changes(ast.parse(source))}) == [
        ".mkdir",
        ".open",
        ".replace",
        "open",
        "os.replace",
    ]
