"""Options that several commands share, TARGET among them, and how their values are read.

TARGET is a memory's folder, answered in this process, or host:port, answered over gRPC.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import wraps
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeAlias

import click
import numpy as np
from numpy.typing import NDArray

from dualform.errors import AlreadyExists, BadInput, FolderError
from dualform.methods import Answers
from dualform.questions import Filter, Queries, Vectors, as_queries
from dualform.questions.filters import ids_condition
from dualform_client.cli.help import ConnectionOption, complete_by, complete_folder, complete_layer, complete_query
from dualform_client.cli.printing import Report, emit
from dualform_client.target import check_folder, connect
from dualform_proto.address import is_served

if TYPE_CHECKING:
    from dualform.query.engine import Bound

SCORES = ("dot", "abs", "cosine", "gradient", "contribution")
FOLDER = click.Path(path_type=Path)
FILE = click.Path(path_type=Path)
SECONDS = click.FloatRange(0, min_open=True)
COUNT = click.IntRange(min=1)
Decorator: TypeAlias = Callable[[Callable[..., Any]], Callable[..., Any]]


def _as_queries(_context: click.Context, _option: click.Parameter, value: str) -> Queries:
    return read_queries(Path(value)) if value.endswith(".npy") else as_queries(value)


def _as_names(_context: click.Context, option: click.Parameter, value: str | None) -> tuple[str, ...] | None:
    if value is None:
        return None
    names, said = tuple(name.strip() for name in value.split(",")), option.opts[0]
    if not all(names):
        raise BadInput(
            f"{said} {value!r} holds an empty name.",
            hint=f"Write {said} COL or {said} COL,COL.",
            field=option.name or "",
        )
    return names


def read_queries(file: Path) -> Vectors:
    """float32[n, d] from an .npy file of numbers. Raises BadInput for any other file."""
    array = read_array(file, "queries")
    if array.dtype.kind not in "fiub":
        raise BadInput(f"The query file {file} holds {array.dtype}, not real numbers.", field="queries")
    with np.errstate(over="ignore"):
        return Vectors(array)


def read_array(file: Path, field: str) -> NDArray[Any]:
    """The array in an .npy file. Raises BadInput for any other file."""
    what = "query file" if field == "queries" else "file"
    try:
        with file.open("rb") as stream:
            # Arrays of objects are refused: reading them would run code from the file.
            array = np.load(stream, allow_pickle=False)
    except OSError as error:
        raise BadInput(f"The {what} {file} cannot be read: {error.strerror}.", field=field) from None
    except (ValueError, EOFError):
        raise BadInput(
            f"The {what} {file} is not an .npy file of numbers.",
            hint="Write it with numpy.save: queries as float32[n, d], ids as int64[n].",
            field=field,
        ) from None
    if not isinstance(array, np.ndarray):
        raise BadInput(f"The {what} {file} holds several arrays, not real numbers.", field=field)
    return array


layer_option = click.option(
    "--layer",
    metavar="NAME[,NAME]",
    shell_complete=complete_layer,
    show_default="output layer",
    help="Ask these layers, or 'h.*'.",
)
query_option = click.option(
    "--query",
    "queries",
    required=True,
    callback=_as_queries,
    metavar="QUERY",
    shell_complete=complete_query,
    help="Ask by test/17, test/17:4 (token), test or FILE.npy.",
)
at_step_option = click.option(
    "--at-step", type=int, metavar="N", show_default="end", help="Answer as of step N (0: untrained)."
)
allow_inexact_option = click.option("--allow-inexact", is_flag=True, help="Answer even if the record is not exact.")
abs_option = click.option("--abs", "absolute", is_flag=True, help="Short for --score abs.")
score_option = click.option(
    "--score",
    metavar="NAME",
    type=click.Choice(SCORES),
    show_default="dot",
    help="Use dot, abs, cosine or gradient.",
)
force_option = click.option("--force", is_flag=True, help="Replace the file if it exists.")


def k_option(says: str) -> Decorator:
    return click.option("-k", default=10, show_default=True, type=COUNT, metavar="N", help=says)


def where_option(says: str = "Use only slots that match.") -> Decorator:
    return click.option("--where", metavar="SQL", show_default="all", help=says)


def takes_filter(says: str = "Use only slots that match.") -> Decorator:
    """Adds --where, --where-samples and --where-slots to a command, which gets them as one filter, `where`."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(command)
        def asked(
            *arguments: Any, where: str | None, where_samples: str | None, where_slots: str | None, **rest: Any
        ) -> Any:
            return command(*arguments, where=one_filter(where, where_samples, where_slots), **rest)

        for column in ("slots", "samples"):
            says_ids = f"Use only these {column}; not:FILE excludes them."
            asked = click.option(f"--where-{column}", metavar="FILE.npy", help=says_ids)(asked)
        return where_option(says)(asked)

    return decorate


def one_filter(where: str | None, samples: str | None, slots: str | None) -> str | Filter | None:
    """The filter of an SQL condition and of files of ids, all of which must hold."""
    # In a CASE, for a condition such as "a) OR (b" is none, and a comment ends with its line.
    parts, values = ([] if where is None else [f"CASE WHEN {where}\n THEN true END"]), list[Any]()
    for column, file in (("sample", samples), ("slot", slots)):
        if file is not None:
            parts.append(f"({ids_condition(column, file.startswith('not:'))})")
            values.append(_ids(Path(file.removeprefix("not:")), f"where-{column}s"))
    return Filter(" AND ".join(parts), tuple(values)) if values else where


def _ids(file: Path, option: str) -> Any:
    """int64[n] or texts from an .npy file. Raises BadInput for any other file."""
    array = read_array(file, option)
    if array.ndim != 1 or array.dtype.kind not in "iuU":
        raise BadInput(
            f"{file} holds {array.dtype}{list(array.shape)}, not a list of ids.",
            hint=f"Give --{option} a file of int64[n], as numpy.save writes it.",
            field=option,
        )
    return array.tolist() if array.dtype.kind == "U" else array


def by_option(says: str, required: bool = False) -> Decorator:
    """--by COL[,COL], given to the command as a tuple of names, or None."""
    return click.option(
        "--by",
        required=required,
        callback=_as_names,
        metavar="COL[,COL]",
        help=says,
        shell_complete=complete_by,
    )


distinct_option = click.option(
    "--distinct",
    callback=_as_names,
    metavar="COL[,COL]",
    help="List one hit for each value, e.g. sample.",
    shell_complete=complete_by,
)


def one_score(absolute: bool, score: str | None) -> str:
    """The score from --abs and --score. Raises BadInput if both are given."""
    if not absolute:
        return score or "dot"
    if score is not None:
        raise BadInput(
            "--abs and --score cannot be given together.", hint="--abs is short for --score abs.", field="score"
        )
    return "abs"


tls_ca_option, tls_cert_option, tls_key_option = (
    click.option(name, argument, cls=ConnectionOption, type=FILE, metavar="FILE", help=says)
    for name, argument, says in (
        ("--tls-ca", "authority", "Trust the CAs in this PEM file, not the system's."),
        ("--tls-cert", "certificate", "Present the certificate in this PEM file."),
        ("--tls-key", "key", "Use the key in this PEM file, with --tls-cert."),
    )
)


def timeout_option(seconds: int) -> Decorator:
    return click.option(
        "--timeout",
        cls=ConnectionOption,
        type=SECONDS,
        metavar="SECONDS",
        default=float(seconds),
        show_default=str(seconds),
        help="Wait at most this long for an answer.",
    )


connection_options = (
    click.option(
        "--token-file",
        cls=ConnectionOption,
        type=FILE,
        metavar="FILE",
        envvar="DUALFORM_TOKEN_FILE",
        show_default="$DUALFORM_TOKEN_FILE",
        help="Read the token here.",
    ),
    click.option(
        "--tls", cls=ConnectionOption, is_flag=True, help="Connect by TLS; implied by --tls-ca and --tls-cert."
    ),
    tls_ca_option,
    tls_cert_option,
    tls_key_option,
    timeout_option(300),
    click.option(
        "--ram",
        cls=ConnectionOption,
        metavar="BYTES",
        show_default="half of the machine, and an eighth for codes",
        help="Limit RAM for local folders, e.g. '2 GB'.",
    ),
)
"""Options of every command that asks a TARGET."""


def check_output_file(out: Path, force: bool, field: str) -> None:
    """Raises AlreadyExists, or FolderError if the file cannot be written. `field`: the option that names it."""
    folder = out.parent
    if not folder.is_dir():
        there = f"{folder} is a file" if folder.exists() else f"There is no folder {folder}"
        raise FolderError(f"{there}.", hint=f"Make the folder first, or give another --{field}.", field=field)
    if out.exists() and not out.is_file():
        raise FolderError(f"{out} is not a regular file.", hint=f"Give another --{field}.", field=field)
    if out.exists() and not force:
        raise AlreadyExists(f"{out} exists.", hint=f"Replace it with --force, or give another --{field}.", field=field)
    if not os.access(folder, os.W_OK):
        raise FolderError(f"{folder} cannot be written to.", hint=f"Give another --{field}.", field=field)


@contextmanager
def replacing(out: Path) -> Iterator[Path]:
    """A temporary file, which replaces `out` once the block has written it, so that `out` is never half a file."""
    partial = out.with_name(f".{out.name}.partial")
    try:
        yield partial
        os.replace(partial, out)
    finally:
        with suppress(OSError):
            partial.unlink()


def named_function(said: str, field: str) -> Callable[..., Any]:
    """A function of the user, named as MODULE:FUNCTION or FILE.py:FUNCTION, to run in this process.

    Modules are found as `python -m` and `python FILE.py` find them. Raises BadInput if the function or its module
    cannot be loaded.
    """
    place, colon, name = said.rpartition(":")
    if not (colon and place and name):
        raise BadInput(f"{said!r} names no function.", hint="Write MODULE:FUNCTION or FILE.py:FUNCTION.", field=field)
    of_file = place.endswith(".py")
    try:
        module = _of_file(Path(place), field) if of_file else _of_name(place)
    except BadInput:
        raise
    except ModuleNotFoundError as error:
        # The missing module may be one that the user's own code imports.
        if of_file or error.name is None or not f"{place}.".startswith(f"{error.name}."):
            raise _not_loaded(place, error, field) from error
        raise BadInput(
            f"There is no module {error.name!r}.",
            hint="Run the command in the module's folder, or name a file: FILE.py:FUNCTION.",
            field=field,
        ) from None
    except (Exception, SystemExit) as error:  # the user's code may raise anything
        raise _not_loaded(place, error, field) from error
    found = getattr(module, name, None)
    if not callable(found):
        raise BadInput(f"{place} has no function {name!r}.", field=field)
    return found  # type: ignore[no-any-return]


def _of_name(name: str) -> ModuleType:
    sys.path.insert(0, "")
    return import_module(name)


def _of_file(file: Path, field: str) -> ModuleType:
    if not file.is_file():
        raise BadInput(f"There is no file {file}.", field=field)
    sys.path.insert(0, str(file.resolve().parent))
    spec = spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules.setdefault(file.stem, module)
    spec.loader.exec_module(module)
    return module


def _not_loaded(place: str, error: BaseException, field: str) -> BadInput:
    if isinstance(error, SyntaxError):
        said = f"{place} cannot be loaded: {error.msg}, in line {error.lineno} of {error.filename}."
        return BadInput(said, field=field)
    said = " ".join(f"{type(error).__name__}: {error}".removesuffix(": ").split())
    return BadInput(f"{place} cannot be loaded: {said}", hint="Set DUALFORM_TRACEBACK=1 to see where.", field=field)


REACH = ("token_file", "tls", "authority", "certificate", "key", "timeout")
"""Options that say how to reach a server."""


def check_run(path: str) -> None:
    """Raises NotAMemory if there is no such folder, BadInput for an address."""
    if not Path(path).exists() and is_served(path):
        raise BadInput(
            f"{path} is a server, and this command needs the memory's folder.",
            hint="Run it on the machine that has the folder.",
            field="target",
        )
    check_folder(Path(path))


def connected(target: str, ram: Bound | None = None, **reach: Any) -> Answers:
    """Opens the folder or connects to the server, to be closed; `reach` has a value for each of REACH.

    Raises NotAMemory or BadInput if the target is neither.
    """
    file = reach.pop("token_file")
    return connect(target, token=read_token(file) if file and not Path(target).exists() else None, ram=ram, **reach)


def read_token(file: Path) -> str:
    """The first line of a file. Raises BadInput if it cannot be read or is blank."""
    from dualform_service.auth import token_lines

    lines, _ = token_lines(file)
    if not lines or not lines[0]:
        raise BadInput(
            f"The token file {file} is blank.", hint="Write the token in its first line.", field="token_file"
        )
    return lines[0]


def _shared_bound(ram: str) -> Bound:
    from dualform.store.files.ram_budget import RamBudget, bytes_of

    return RamBudget.shared(bytes_of(ram, "ram"))


def reaching(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the connection options to a command."""
    for decorator in reversed(connection_options):
        command = decorator(command)
    return command


def asks_targets(*names: str) -> Decorator:
    """Adds TARGET arguments of these names and their options to a command, which is called with the open memory, or
    with several in a tuple. Its report is printed before they are closed.
    """

    def decorate(command: Callable[..., Report | None]) -> Callable[..., Any]:
        @wraps(command)
        def opened(ram: str | None, **rest: Any) -> int:
            targets, reach = [rest.pop(name) for name in names], {name: rest.pop(name) for name in REACH}
            folders = [target for target in targets if Path(target).exists() or not is_served(target)]
            # It is for the folders, if there are any; several share it.
            bound = ram if ram is None or len(folders) < 2 else _shared_bound(ram)
            bounds = [bound if target in folders or not folders else None for target in targets]
            with ExitStack() as open_:
                memories = [open_.enter_context(connected(*own, **reach)) for own in zip(targets, bounds, strict=True)]
                return emit(command(tuple(memories) if len(names) > 1 else memories[0], **rest))

        asking = reaching(opened)
        for name in reversed(names):
            metavar = "TARGET" if len(names) == 1 else name.upper()
            asking = click.argument(name, metavar=metavar, shell_complete=complete_folder)(asking)
        return asking

    return decorate


asks_target, asks_two_targets = asks_targets("place"), asks_targets("a", "b")
