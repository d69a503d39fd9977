"""The widget. Its question consists of traits that the front end changes, and its answer is one more trait."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import anywidget
import traitlets

from dualform.faults import as_dualform_error
from dualform.methods import Answers
from dualform_explorer.memories import RememberedAnswers
from dualform_notebook.state import WidgetState, chip_of
from dualform_notebook.view import placebo_of, view_of

_HERE = Path(__file__).parent
_ASKED = ("query", "token", "layer", "by", "score", "target", "masks", "where", "k", "allow_inexact")


class Explorer(anywidget.AnyWidget):
    """Shows what one prediction attends to: sums of groups, the best slots, and both under a filter.

    The question can be changed in Python as well as by mouse, and `view` has the content of the widget:

        explorer = memory.explorer("test/17")
        explorer.layer = "layer-0"
        explorer.view["groups"]
    """

    _esm = _HERE / "explorer.js"
    _css = _HERE / "explorer.css"

    query = traitlets.Unicode("").tag(sync=True)
    """QUERY_SET/EXAMPLE, as the page names it."""
    token = traitlets.Int(None, allow_none=True).tag(sync=True)
    """The place in the example, of layers that see tokens; its last where it is None."""
    layer = traitlets.Unicode("").tag(sync=True)
    by = traitlets.Unicode("").tag(sync=True)
    """Columns to group by, with commas between."""
    score = traitlets.Unicode("dot").tag(sync=True)
    """dot, abs or contribution, which the page calls attention, absolute and contribution."""
    target = traitlets.Unicode("").tag(sync=True)
    """Where contributions go to: an output by its number, or a margin as 3-8. What tells most where it is empty."""
    masks: traitlets.List[Any] = traitlets.List().tag(sync=True)
    """Groups that are left out, or kept: {"values": {column: value}, "keep": bool} each."""
    where = traitlets.Unicode("").tag(sync=True)
    """A filter as SQL, in addition to those."""
    k = traitlets.Int(12).tag(sync=True)
    """How many slots are shown."""
    allow_inexact = traitlets.Bool(False).tag(sync=True)
    """Whether contributions are answered from a record that is further from the training's weights than the bound."""
    view = traitlets.Dict().tag(sync=True)
    """The content; {"error": {"code", "message", "hint"}} if the question was refused."""

    placebo = traitlets.Dict().tag(sync=True)
    """Whether the change of the prediction under the filter is unusual among random filters of its size; {"note"} where
    that cannot be had. Empty without a filter, and for all layers but the output layer.
    """

    def __init__(self, memory: Answers, **asked: Any) -> None:
        self._memory = RememberedAnswers(memory)
        self._answered: WidgetState | None = None
        self._turn = 0
        super().__init__(**asked)
        self.observe(self._ask, names=list(_ASKED))
        self._ask()

    def _ask(self, change: Mapping[str, Any] | None = None) -> None:
        """Answer the current question, unless it is the last one. Of several changes at once, only the last counts.

        The turn is a new number each time. It tells the front end that a question was answered, even if the answer is
        the same.
        """
        try:
            state = WidgetState(
                query=self.query,
                token=self.token,
                layer=self.layer,
                by=self.by,
                score=self.score,
                target=self.target,
                chips=tuple(map(chip_of, self.masks)),
                where=self.where,
                k=self.k,
                allow_inexact=self.allow_inexact,
            )
            if state == self._answered:
                return
            view = view_of(self._memory, state)
            self._answered = state
            compare = True
        except Exception as error:  # nobody sees what a kernel logs of a widget's message
            self._answered, compare = None, False
            ours = as_dualform_error(error)
            view = {"error": {"code": ours.code, "message": ours.message, "hint": ours.hint}}
        self._turn += 1
        self.placebo = {}
        self.view = {**view, "turn": self._turn}
        if compare:
            self._compare(state)

    def _compare(self, state: WidgetState) -> None:
        """After the view, which does not wait for it: the first comparison takes a pass over the layer's training."""
        try:
            self.placebo = placebo_of(self._memory, state)
        except Exception as error:
            self.placebo = {"note": as_dualform_error(error).message}
