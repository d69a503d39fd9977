"""The machine and the versions that figures belong to; no host names and no folders."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from dualform.store.machine_memory import memory_bytes


def describe_machine() -> dict[str, str]:
    return {
        "processor": _processor(),
        "cores": str(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()),
        "memory": f"{memory_bytes() / 1e9:.0f} GB",
        "GPU": _gpu(),
        "system": f"{platform.system()} {platform.release().split('-')[0]}, Python {platform.python_version()}",
    }


def threads() -> dict[str, str]:
    """How many torch computes on: with another number, the last bits of a training differ."""
    import torch

    return {"threads": str(torch.get_num_threads())}


def peak_bytes() -> int:
    """The most memory that this process has held so far, what files back included; 0 where the system does not say."""
    with suppress(OSError):
        found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
        return 1024 * int(found.group(1)) if found else 0
    return 0


def versions_of(packages: Sequence[str]) -> dict[str, str]:
    """Of those that are installed."""
    found = {}
    for package in packages:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def _processor() -> str:
    """The model, and those of its instructions that matrix products live on."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.processor() or platform.machine()
    model = re.search(r"model name\s*:\s*(.+)", text)
    flags = re.search(r"flags\s*:\s*(.+)", text)
    known = {"avx2": "AVX2", "avx512f": "AVX-512", "avx512_vnni": "VNNI", "avx512_bf16": "BF16", "amx_tile": "AMX"}
    present = [word for flag, word in known.items() if flags and flag in flags.group(1).split()]
    return f"{model.group(1) if model else platform.machine()} ({', '.join(present) or 'no wide vectors'})"


def _gpu() -> str:
    try:
        import torch
    except ImportError:
        return "none at hand"
    return torch.cuda.get_device_name() if torch.cuda.is_available() else "none at hand"
