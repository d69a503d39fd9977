"""Whether the tests notice a fault: python -m tests.mutants OUT.jsonl [--count 60] [--seed 39] [--only known|drawn]

It makes one small change at a time to a copy of this checkout, `x < y` to `x <= y` say, and runs the tests of its room
until one fails. A change that no test notices has survived. Changes are drawn by a seed, as many in each room, after
those that once survived (KNOWN). OUT.jsonl has a line for each; those that are there are not tried again, so that a
run can be ended and go on. It needs the package cosmic-ray, and hours.
"""

from __future__ import annotations

import ast
import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from difflib import unified_diff
from pathlib import Path
from time import perf_counter

import click

ROOT = Path(__file__).parents[1]
TREE = ROOT / "build" / "mutants"
EVERYWHERE = ("contract", "golden")
ROOMS = {
    "record": ("indexer/dualform/record", ("record", "rules", "costs", "integrations")),
    "store": ("indexer/dualform/store", ("store", "deletion")),
    "query": ("indexer/dualform/query", ("query", "kernels", "influence")),
    "service": ("service/dualform_service", ("service", "wire")),
    "client": ("clients/dualform_client", ("client", "cli", "wire")),
}
"""Their folder, and the folders of tests that are run first, before those of EVERYWHERE."""
SECONDS = 1800
"""A change under which the tests take longer is noticed."""


@dataclass(frozen=True)
class Change:
    room: str
    file: str
    what: str
    """The operator and where, or why it is known."""
    before: str
    after: str
    """The text of the file."""

    @property
    def diff(self) -> str:
        lines = unified_diff(self.before.splitlines(), self.after.splitlines(), n=1, lineterm="")
        return "\n".join(list(lines)[2:])


KNOWN = (
    (
        "query",
        "indexer/dualform/query/weights/reconstruction.py",
        "verify() goes through no layer",
        "for name, layer in view.snapshot.layers.items()}",
        "for name, layer in ()}",
    ),
    (
        "service",
        "service/dualform_service/servicer.py",
        "questions are not waited for",
        "LINGER = 0.03",
        "LINGER = 0.0",
    ),
    ("service", "service/dualform_service/scheduling.py", "heavy work is as nice", "HEAVY_NICE = 15", "HEAVY_NICE = 0"),
    (
        "service",
        "service/dualform_service/admission.py",
        "the limit of open files is not raised",
        "def raise_limit() -> None:\n",
        "def raise_limit() -> None:\n    return\n\n\ndef _unused() -> None:\n",
    ),
)
"""Changes that no test noticed once: room, file, what it does, a text of the file, and what takes its place."""


def known() -> Iterator[Change]:
    for room, file, what, old, new in KNOWN:
        text = (ROOT / file).read_text()
        if text.count(old) != 1:
            raise click.ClickException(f"{file} has no {old!r}: move this change to where it belongs now.")
        yield Change(room, file, what, text, text.replace(old, new))


def drawn(count: int, seed: int) -> Iterator[Change]:
    """As many in each room, among all places of its files; a change of nothing but annotations is none."""
    from cosmic_ray.ast import get_ast
    from cosmic_ray.mutating import mutate_code
    from cosmic_ray.plugins import get_operator, operator_names

    draw = random.Random(seed)
    names = (name for name in operator_names() if not name.startswith("core/Variable"))  # they want a name
    operators = {name: get_operator(name)() for name in names}
    for number in range(count):
        room = list(ROOMS)[number % len(ROOMS)]
        files = sorted((ROOT / ROOMS[room][0]).rglob("*.py"))
        while True:
            (file,) = draw.choices(files, [own.stat().st_size for own in files])
            text = file.read_text()
            counts = {name: _places(operator, get_ast(text)) for name, operator in operators.items()}
            kinds = sorted({_kind(name) for name, places in counts.items() if places})
            if not kinds:
                continue
            kind = draw.choice(kinds)
            name = draw.choice([own for own, places in counts.items() if places and _kind(own) == kind])
            place = draw.randrange(counts[name])
            after = mutate_code(text, operators[name], place)
            if after is not None and _run_alike(after) != _run_alike(text):
                yield Change(room, str(file.relative_to(ROOT)), f"{name} {place}", text, after)
                break


def _kind(operator: str) -> str:
    """Of operators that are many, as those that put one sign in place of another, the family."""
    return operator.split("_")[0]


def _places(operator: object, tree: object) -> int:
    found, nodes = 0, [tree]
    while nodes:
        node = nodes.pop()
        found += sum(1 for _ in operator.mutation_positions(node))  # type: ignore[attr-defined]
        nodes += getattr(node, "children", [])
    return found


def _run_alike(text: str) -> str:
    """What is run of a file: without annotations, and `strict` of zip, which only a fault makes speak."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.keyword) and node.arg == "strict":
            node.value = ast.Constant(None)
        for name in ("annotation", "returns"):
            if getattr(node, name, None) is not None:
                setattr(node, name, ast.Constant(None))
    return ast.dump(tree)


def prepare() -> None:
    """A copy of the files that git knows, with the compiled loops."""
    shutil.rmtree(TREE, ignore_errors=True)
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True, text=True).stdout
    built = [str(own.relative_to(ROOT)) for own in (ROOT / "indexer" / "dualform" / "kernels").glob("*.so")]
    for name in (*filter(None, listed.split("\0")), *built):
        target = TREE / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, target)
    if (ROOT / "build" / "golden").exists():
        shutil.copytree(ROOT / "build" / "golden", TREE / "build" / "golden")


def noticed(change: Change) -> str:
    """The first test that fails; "in time" for one that takes too long; empty of a change that survives."""
    (TREE / change.file).write_text(change.after)
    folders = [f"tests/{name}" for name in (*ROOMS[change.room][1], *EVERYWHERE)]
    paths = os.pathsep.join(str(TREE / name) for name in ("indexer", "protos", "service", "clients"))
    own = {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", *folders, "-x", "-q", "--numprocesses", "auto", "-p", "no:cacheprovider"]
    try:
        ran = subprocess.run(
            command, cwd=TREE, env={**os.environ, **own}, capture_output=True, text=True, timeout=SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return "in time"
    finally:
        (TREE / change.file).write_text(change.before)
    if not ran.returncode:
        return ""
    lines = [line for line in ran.stdout.splitlines() if line.startswith(("FAILED ", "ERROR "))]
    return lines[0][:200] if lines else ran.stdout[-200:]


@click.command()
@click.argument("out", type=click.Path(path_type=Path))
@click.option("--count", default=60, help="Changes that are drawn.")
@click.option("--seed", default=39)
@click.option("--only", type=click.Choice(["known", "drawn"]))
def main(out: Path, count: int, seed: int, only: str | None) -> None:
    """Try changes, and say which no test notices."""
    changes = [*(known() if only != "drawn" else ()), *(drawn(count, seed) if only != "known" else ())]
    tried = [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []
    done = {(own["file"], own["diff"]) for own in tried}
    prepare()
    for change in changes:
        if (change.file, change.diff) in done:
            continue
        begun = perf_counter()
        test = noticed(change)
        told = {**asdict(change), "diff": change.diff, "noticed": test, "seconds": round(perf_counter() - begun, 1)}
        del told["before"], told["after"]
        tried.append(told)
        with out.open("a") as file:
            file.write(json.dumps(told) + "\n")
        click.echo(f"{'noticed ' if test else 'SURVIVED'} {told['seconds']:6.0f} s  {change.file}  {change.what}")
    lived = [own for own in tried if not own["noticed"]]
    click.echo(f"{len(tried) - len(lived)} of {len(tried)} changes were noticed.")
    for own in lived:
        click.echo(f"\n{own['file']}: {own['what']}\n{own['diff']}")


if __name__ == "__main__":
    main()
