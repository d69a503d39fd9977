"""What may be said of a step while it runs."""

from __future__ import annotations

from typing import Any

from dualform.errors import RecordingError
from dualform.record.step_record import StepRecord


class Step:
    """A step while it runs, as `recorder.step(...)` yields it: what may be said after its forward pass has begun."""

    def __init__(self, record: StepRecord | None) -> None:
        """`record`: None where recording has stopped."""
        self._record = record

    @property
    def updated(self) -> bool:
        """Whether an optimizer has made an update of it."""
        return self._record is not None and bool(self._record.updated)

    def continues(self, earlier: Step) -> None:
        """Say that it is of the same batch as the step before it: a gradient of that one's forward calls which arrives
        now belongs to this one. So a generator that ran before the discriminator's update is recorded with its own.

        Raises RecordingError where `earlier` is another step than the one that ran right before.
        """
        if self._record is not None and earlier._record is not None:
            self._record.goes_on(earlier._record)

    def at(self, space: str, **columns: Any) -> None:
        """Say columns of the slots of one space, as `step(at={space: {…}})` does: one value, one for each row, or one
        for each token [B, L…]; `position` and `mask` too, and `row` where the model chooses the rows.

        To a routed space it is said before each call: the k-th saying of a column, or of `row` and `position`, belongs
        to the space's k-th call of the step that a gradient reaches. One value that is said once holds for all calls.
        Where there are not as many sayings as calls, a first step is refused, and later nothing of it is recorded,
        with a warning.

        Raises BadInput for what is no column, RecordingError once the step's update has been made.
        """
        if self._record is None:
            return
        if self._record.settled:
            raise RecordingError(
                f"step.at was called after the update of step {self._record.step}.",
                hint="Call it between the forward pass and optimizer.step().",
            )
        self._record.metadata.say(space, columns)
