"""The C files compile without a warning with gcc and with clang, and what each makes of them gives the same bits; and
while every loop runs, gcc's address sanitizer and clang's sanitizer of undefined behaviour find nothing.

Where no clang is installed, that of zig is used, which the package ziglang brings.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from dualform import kernels
from tests.cases import some
from tests.kernels.forms import COMPILED

ROOT = Path(__file__).parents[2]
SOURCES = Path(kernels.__file__).parent
WARNINGS = ["-Wall", "-Wextra", "-Werror", "-Wundef", "-Wpointer-arith"]
FLAGS = ["-std=gnu11", "-ffp-contract=off", "-fno-math-errno", *WARNINGS]
SHARED = ["-shared", "-fPIC"]
ADDRESSES = ["-fsanitize=address", "-fno-sanitize-recover=all"]
# What is undefined ends the process: that takes no library of the sanitizer, which only some clangs bring.
TRAPS = ["-fsanitize=undefined", "-fsanitize-trap=undefined"]


def command_of(compiler: str) -> list[str]:
    """Skips the test where it is missing."""
    if shutil.which(compiler) is not None:
        return [compiler]
    if compiler != "clang":
        pytest.skip(f"there is no {compiler} here")
    if importlib.util.find_spec("ziglang") is None:
        pytest.skip("there is no clang here, nor the package ziglang, which brings one")
    # By itself it compiles for the very processor that it runs on, which gcc and clang do not.
    return [sys.executable, "-m", "ziglang", "cc", "-mcpu=baseline"]


def compiled(compiler: str, to: Path, *options: str, sources: list[Path]) -> Path:
    command = [*command_of(compiler), *FLAGS, *options, *map(str, sources), "-o", str(to), "-lm"]
    made = subprocess.run(command, capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr
    return to


def compiled_loops(compiler: str, *options: str) -> Path:
    """All the loops, kept in build/kernels/ until they, the compiler or its options change: to compile takes 10 s."""
    sources = sorted(SOURCES.glob("*.c"))
    version = subprocess.run([*command_of(compiler), "--version"], capture_output=True, check=True).stdout
    files = [path.read_bytes() for path in (*sources, *sorted(SOURCES.glob("*.h")))]
    known = hashlib.sha256(b"".join([version, repr((FLAGS, options)).encode(), *files])).hexdigest()
    kept = ROOT / "build" / "kernels" / f"{compiler}-{known[:16]}.so"
    if not kept.exists():
        kept.parent.mkdir(parents=True, exist_ok=True)
        compiled(compiler, kept.with_suffix(f".{os.getpid()}"), *options, sources=sources).replace(kept)
    return kept


LOOPS = ["tests/kernels/test_loops.py", "tests/kernels/test_sums.py"]


def run_tests(library: Path, *files: str, **environment: str) -> None:
    """In a process that loads `library`."""
    # Without plugins and their settings, which take longer than the tests.
    plain = ["-c", os.devnull, "--rootdir", ".", "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", "-qxs", *plain, *files]
    own = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    own |= {COMPILED: str(library), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", **environment}
    ran = subprocess.run(command, env=own, cwd=ROOT, capture_output=True, text=True, check=False, timeout=240)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert " passed" in ran.stdout


def test_the_greatest_of_numbers_that_rise_and_fall_are_found_in_time(tmp_path):
    """Where each pass over them left out two numbers alone, these took minutes; by halves they take milliseconds."""
    program, source = tmp_path / "smooth", Path(__file__).with_name("smooth.c")
    compiled("gcc", program, "-O2", "-I", str(SOURCES), sources=[source])
    found = subprocess.run([program], capture_output=True, text=True, check=True, timeout=60)
    assert found.stdout == f"{600_000}\n"


def test_loops_of_gcc_give_the_same_bits_and_stay_within_their_arrays():
    """Optimised, for only then does gcc warn of numbers that may be read before they are set."""
    library = compiled_loops("gcc", "-O1", *SHARED, *ADDRESSES)
    found = subprocess.run(["gcc", "-print-file-name=libasan.so"], capture_output=True, text=True, check=True)
    runtime = found.stdout.strip()
    if not Path(runtime).is_absolute():
        pytest.skip("this gcc has no address sanitizer")
    # Python itself frees little at its end, so leaks would say nothing.
    run_tests(library, *LOOPS, LD_PRELOAD=runtime, ASAN_OPTIONS="detect_leaks=0")


@pytest.mark.parametrize("system", ["aarch64-linux-gnu", "aarch64-macos", "x86_64-windows-gnu"])
def test_the_loops_compile_for_other_systems(tmp_path, system):
    pytest.importorskip("ziglang", reason="the package ziglang, which brings other systems' headers, is not here")
    command = [sys.executable, "-m", "ziglang", "cc", "-target", system, *FLAGS, "-O0", "-c", "-o", "loop.o"]
    for source in some(sorted(SOURCES.glob("*.c"))):
        made = subprocess.run([*command, str(source)], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert made.returncode == 0, made.stderr


OVERFLOW = """
int main(int count, char **named) {
    (void)named;
    return 2147483647 + count < 0;
}
"""


def test_clang_gives_the_same_bits_and_calls_nothing_undefined(tmp_path):
    (tmp_path / "overflow.c").write_text(OVERFLOW)
    overflow = compiled("clang", tmp_path / "overflow", "-O1", *TRAPS, sources=[tmp_path / "overflow.c"])
    assert subprocess.run([overflow], check=False).returncode < 0, "this clang has no such sanitizer"
    run_tests(compiled_loops("clang", "-O2", *SHARED, *TRAPS), *LOOPS)


def test_an_arm_processor_gives_the_same_bits(tmp_path):
    """The portable loops, the only ones there, run by an emulator."""
    emulator = shutil.which("qemu-aarch64")
    if emulator is None:
        pytest.skip("there is no qemu-aarch64 here")
    program = ["-O0", "-I", str(SOURCES), str(Path(__file__).with_name("bits.c"))]
    arm = compiled("aarch64-linux-gnu-gcc", tmp_path / "arm", *program, "-static")
    here = compiled("gcc", tmp_path / "here", *program)
    found = [subprocess.run(run, capture_output=True, check=True).stdout for run in ([emulator, arm], [here])]
    assert found[0] == found[1]
    assert found[0].count(b"\n") == 13
