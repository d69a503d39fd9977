"""A function of the user's own, named on the command line as MODULE:FUNCTION or FILE.py:FUNCTION."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from dualform.errors import BadInput


def named_function(said: str, option: str) -> Callable[..., Any]:
    """Loads the user's code, which runs in this process. A module is looked for in this folder and among the installed
    packages; a file finds the modules beside it. `option`: as "look", by which errors call it.

    Raises BadInput, naming what is wrong, where there is no such function or its module cannot be loaded.
    """
    place, colon, name = said.rpartition(":")
    if not (colon and place and name):
        raise BadInput(
            f"--{option} is {said!r}.", hint="Name a function as MODULE:FUNCTION or FILE.py:FUNCTION.", field=option
        )
    try:
        module = _of_file(Path(place), option) if place.endswith(".py") else _of_name(place)
    except BadInput:
        raise
    except ModuleNotFoundError as error:
        if place.endswith(".py") or not _within(place, error.name):
            raise _not_loaded(place, error, option) from None
        raise BadInput(
            f"There is no module {error.name!r}.",
            hint="It is looked for in this folder and among the installed packages; a file is FILE.py:FUNCTION.",
            field=option,
        ) from None
    except (Exception, SystemExit) as error:  # whatever somebody's own code raises
        raise _not_loaded(place, error, option) from None
    function = getattr(module, name, None)
    if function is None:
        raise BadInput(f"{place} has no function {name!r}.", hint="Name one that it defines.", field=option)
    if not callable(function):
        raise BadInput(f"{said} is of type {type(function).__name__}, and no function.", field=option)
    found: Callable[..., Any] = function
    return found


def _of_name(name: str) -> ModuleType:
    sys.path.append(str(Path.cwd()))  # behind all others: what is installed is not shadowed
    return import_module(name)


def _of_file(file: Path, option: str) -> ModuleType:
    if not file.is_file():
        raise BadInput(f"There is no file {file}.", field=option)
    sys.path.append(str(file.resolve().parent))
    spec = spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules.setdefault(file.stem, module)
    spec.loader.exec_module(module)
    return module


def _within(place: str, missing: str | None) -> bool:
    """Whether the missing module is the one that was named, or a package that it is in."""
    return missing is not None and f"{place}.".startswith(f"{missing}.")


def _not_loaded(place: str, error: BaseException, option: str) -> BadInput:
    if isinstance(error, SyntaxError):
        where = f"line {error.lineno} of {error.filename}" if error.filename else f"line {error.lineno}"
        return BadInput(f"{place} cannot be loaded: {where}: {error.msg}.", field=option)
    said = " ".join(f"{type(error).__name__}: {error}".removesuffix(": ").split())
    return BadInput(f"{place} cannot be loaded: {said}", field=option)
