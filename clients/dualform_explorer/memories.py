"""The memories that the pages are about, by name: each is opened when it is first asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from threading import Lock
from typing import Any

from dualform.answers import MemoryInfo
from dualform.errors import NotFound
from dualform.methods import Answers
from dualform_explorer.preview_function import PreviewFunction, with_previews
from dualform_explorer.remembered import RememberedAnswers


class Memories:
    """Safe to use from several threads."""

    def __init__(self, opened: Mapping[str, Callable[[], Answers]], preview: PreviewFunction | None = None) -> None:
        """`opened`: by name, what opens or connects to one. `preview`: what training samples look like, in place of the
        preview sets of datasets.
        """
        self._opened, self._preview = dict(opened), preview
        self._answers: dict[str, tuple[Answers, RememberedAnswers]] = {}
        self._scouts: dict[str, Answers] = {}
        """Opened beside those that answer, to look ahead."""
        self._locks = {name: Lock() for name in opened}

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._opened)

    def one(self, name: str) -> RememberedAnswers:
        """Raises NotFound for a name that there is not, and what opening it raises, each time that it is tried."""
        return self._both(name)[1]

    def newest(self, name: str) -> RememberedAnswers:
        """The memory with what was committed since it was opened: a server looks for that by itself, a folder here."""
        answers, remembered = self._both(name)
        refresh: Any = getattr(answers, "refresh", None)
        if refresh is not None:
            refresh()
        return remembered

    def news(self, name: str) -> MemoryInfo:
        """What the memory holds by now, without moving what pages are answered from."""
        answers, _ = self._both(name)
        if not hasattr(answers, "refresh"):
            return answers.info()
        with self._locks[name]:
            if name not in self._scouts:
                self._scouts[name] = self._opened[name]()
            scout: Any = self._scouts[name]
        scout.refresh()
        info: MemoryInfo = scout.info()
        return info

    def _both(self, name: str) -> tuple[Answers, RememberedAnswers]:
        if name not in self._opened:
            raise NotFound(f"There is no memory {name!r}.", hint=f"There is {', '.join(self._opened)}.", field="memory")
        with self._locks[name]:
            if name not in self._answers:
                answers = self._opened[name]()
                self._answers[name] = answers, RememberedAnswers(with_previews(answers, self._preview))
            return self._answers[name]

    def close(self) -> None:
        for answers in (*(own for _, own in self._answers.values()), *self._scouts.values()):
            answers.close()


def names_of(targets: Sequence[str]) -> list[str]:
    """What targets are called: a folder by its last part, with more of it where two are alike; a server as it is."""
    parts = [Path(target).resolve().parts if Path(target).exists() else (target,) for target in targets]
    names = [own[-1] for own in parts]
    for depth in range(2, 1 + max(map(len, parts), default=1)):
        for place, own in enumerate(parts):
            if sum(name == names[place] for name in names) > 1:
                names[place] = "/".join(own[-depth:])
    return names
