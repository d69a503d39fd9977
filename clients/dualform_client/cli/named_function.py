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

_TRACEBACK = "Set DUALFORM_TRACEBACK=1 to see where."


def named_function(said: str, field: str) -> Callable[..., Any]:
    """Loads the user's code, which runs in this process. A module is found as `python -m` finds it, from the folder
    where the command runs; a file finds the modules beside it, as `python FILE.py` does. `field`: of the argument.

    Raises BadInput, naming what is wrong, where there is no such function or its module cannot be loaded.
    """
    place, colon, name = said.rpartition(":")
    if not (colon and place and name):
        raise BadInput(
            f"{said!r} names no function.", hint="Name one as MODULE:FUNCTION or FILE.py:FUNCTION.", field=field
        )
    of_file = place.endswith(".py")
    try:
        module = _of_file(Path(place), field) if of_file else _of_name(place)
    except BadInput:
        raise
    except ModuleNotFoundError as error:
        if of_file or not _within(place, error.name):
            raise _not_loaded(place, error, field) from error
        raise BadInput(
            f"there is no module {error.name!r}.",
            hint="Name a module from the folder that it is in, or a file, as FILE.py:FUNCTION.",
            field=field,
        ) from None
    except (Exception, SystemExit) as error:  # whatever somebody's own code raises
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
        raise BadInput(f"there is no file {file}.", field=field)
    sys.path.insert(0, str(file.resolve().parent))
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


def _not_loaded(place: str, error: BaseException, field: str) -> BadInput:
    if isinstance(error, SyntaxError):
        return BadInput(
            f"{place} cannot be loaded: {error.msg}, in line {error.lineno} of {error.filename}.", field=field
        )
    said = " ".join(f"{type(error).__name__}: {error}".removesuffix(": ").split())
    return BadInput(f"{place} cannot be loaded: {said}", hint=_TRACEBACK, field=field)
