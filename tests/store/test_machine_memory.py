"""How much memory a control group leaves, in both versions of them."""

from __future__ import annotations

import pytest

from dualform.store.files.ram_budget import memory_bytes

GB = 10**9


@pytest.fixture
def root(tmp_path, monkeypatch):
    monkeypatch.setattr("os.sysconf", {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 64 * GB // 4096}.get)
    (tmp_path / "proc/self").mkdir(parents=True)

    def build(groups, **files):
        (tmp_path / "proc/self/cgroup").write_text(groups)
        for name, text in files.items():
            file = tmp_path / "sys/fs/cgroup" / name.replace("__", "/")
            file.parent.mkdir(parents=True, exist_ok=True)
            # A dot is none of Python's names.
            file.with_name(file.name.replace("max", "memory.max").replace("limit", "memory.limit_in_bytes")).write_text(
                text
            )
        return tmp_path

    return build


NONE = "9223372036854771712\n"


@pytest.mark.parametrize(
    ("groups", "files", "found"),
    [
        ("0::/\n", {}, 64 * GB),
        ("0::/\n", {"max": "max\n"}, 64 * GB),
        # A container of version 2, a service of systemd, and a slice above it that has less.
        ("0::/\n", {"max": "2000000000\n"}, 2 * GB),
        ("0::/system.slice/a.service\n", {"system.slice__a.service__max": "3000000000\n"}, 3 * GB),
        ("0::/a/b\n", {"a__b__max": "3000000000\n", "a__max": "1000000000\n"}, GB),
        # Version 1: a group by its path, a container that sees its own as the root, and no limit.
        ("9:name=systemd:/\n4:memory:/a/b\n0::/\n", {"memory__a__b__limit": "5000000000\n"}, 5 * GB),
        ("4:cpu,memory:/docker/0123\n", {"memory__limit": "1000000000\n"}, GB),
        ("4:memory:/a\n", {"memory__a__limit": NONE, "memory__limit": NONE}, 64 * GB),
        # What is no such file.
        ("nonsense\n", {"max": "two\n"}, 64 * GB),
        ("3:cpu:/a\n", {"memory__a__limit": "1\n"}, 64 * GB),
    ],
)
def test_the_least_limit_counts(root, groups, files, found):
    assert memory_bytes(root(groups, **files)) == found
