"""How many examples a query set has: as many as its inputs hold along their axis, where nothing speaks against it.

Inputs whose batch is another axis than was said hold another number of examples along it. What layers took of them,
outputs, labels and a preview set tell; where they do not, the number is unknown.
"""

from __future__ import annotations


class ExampleCount:
    def __init__(self) -> None:
        self.given = 0
        """Examples along the axis of inputs that was said."""
        self.batch = 0
        """Of those, the ones that the model runs on now."""
        self.axis = 0
        """Of inputs, the one that was said."""
        self._agrees: dict[str, bool] = {}
        """By layer, whether it took as many rows as there were examples, in all batches."""
        self._square: dict[str, bool] = {}
        """By layer whose batch is another axis than that of the inputs, whether it took square parts of them alone, in
        which tokens are as many as examples."""
        self._contradicted = False

    def layer_took(self, name: str, rows: int, tokens: int | None, axis: int) -> None:
        """What a layer had along the axis of its batch; `tokens`: along its other axes, None where it has none."""
        agrees = rows == self.batch
        self._agrees[name] = self._agrees.get(name, True) and agrees
        if axis != self.axis:
            self._square[name] = self._square.get(name, True) and rows == tokens and self.batch < self.given
        # Rows without an axis for tokens may be tokens, and one row for all is a look-up that the examples share.
        if not agrees and (axis or (tokens is not None and rows > 1)):
            self._contradicted = True

    def known(self, outputs: int | None, labels: int | None, shown: bool) -> int | None:
        """The number of examples; None where it cannot be told. `outputs`, `labels`: how many there are of them, None
        where there are none; `shown`: whether a preview set has as many samples.
        """
        others = [own for own in (outputs, labels) if own is not None]
        if self._contradicted or any(self._square.values()) or any(own % self.given for own in others):
            return None
        told = shown or self.given in others or any(self._agrees.values())
        return self.given if told else None
