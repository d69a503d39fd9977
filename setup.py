"""Compiles the loops over every key (indexer/dualform/kernels) into a shared library, and tells the version.

It is called through ctypes and knows nothing of Python, so that one wheel of a platform serves every Python. It takes
gcc or clang, or what calls itself so (`CC="python -m ziglang cc"`); the environment's CC, CFLAGS and ARCHFLAGS are
heeded. Without a compiler dualform installs without the loops, and says what that costs when it is used; where
DUALFORM_REQUIRE_LOOPS is set, as for wheels, it does not install.

The version is that of git's tag, v0.2.0. Behind it, and in a clone that has no tags, it is a development version; of an
archive of the sources it is that of the archive, and of other sources without git, the next one's.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext
from setuptools_scm import ScmVersion
from setuptools_scm.version import guess_next_dev_version

NEXT = "0.2.0"
"""The release that is worked on: the uppermost of CHANGELOG.md."""

KERNELS = Path("indexer/dualform/kernels")
FLAGS = ["-O3", "-std=gnu11", "-ffp-contract=off", "-fno-math-errno"]


def command(to: Path) -> list[str]:
    """What compiles the loops. Raises FileNotFoundError where there is no compiler."""
    environment = [word for name in ("CFLAGS", "ARCHFLAGS") for word in shlex.split(os.environ.get(name, ""))]
    shared = ["-shared", "-static-libgcc"] if sys.platform == "win32" else ["-shared", "-fPIC"]
    return [*compiler(), *FLAGS, *environment, *shared, *sorted(map(str, KERNELS.glob("*.c"))), "-o", str(to), "-lm"]


def compiler() -> list[str]:
    if "CC" in os.environ:
        return shlex.split(os.environ["CC"])
    known = [*shlex.split(sysconfig.get_config_var("CC") or "")[:1], "cc", "gcc", "clang"]
    found = next((path for name in known if (path := shutil.which(name))), None)
    if found is None:
        raise FileNotFoundError("there is no C compiler (cc, gcc or clang) here")
    return [found]


def version_of(found: ScmVersion) -> str:
    untagged = str(found.tag) == "0.0"
    return f"{NEXT}.dev{found.distance or 0}" if untagged else guess_next_dev_version(found)


class BuildLoops(build_ext):
    def get_ext_filename(self, fullname: str) -> str:
        # No tag of a Python: see above. loader.py knows the name.
        return os.path.join(*fullname.split(".")) + (".dll" if sys.platform == "win32" else ".so")

    def build_extension(self, ext: Extension) -> None:
        to = Path(self.get_ext_fullpath(ext.name))
        to.parent.mkdir(parents=True, exist_ok=True)
        try:
            subprocess.run(command(to), check=True)
        except (OSError, subprocess.CalledProcessError) as error:
            if os.environ.get("DUALFORM_REQUIRE_LOOPS"):
                raise
            self.warn(f"dualform installs without its compiled loops: {error}")


class Wheel(bdist_wheel):
    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


setup(
    use_scm_version={
        "version_scheme": version_of,
        "local_scheme": "no-local-version",
        "fallback_version": f"{NEXT}.dev0",
    },
    ext_modules=[
        Extension(
            "dualform.kernels._kernels",
            sorted(map(str, KERNELS.glob("*.c"))),
            depends=[str(KERNELS / "kernels.h")],
            optional=True,
        )
    ],
    cmdclass={"build_ext": BuildLoops, "bdist_wheel": Wheel},
)
