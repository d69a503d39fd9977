"""How much of the disk a recording may take, and the share of its slots that fits.

    left  =  budget  -  what its files take  -  what was recorded since they were measured  -  what is held back

The share begins at 1. Where the number of steps is planned, it is set at the first one to what fits. From then on it
is only halved, for the steps that follow: whenever half of what was left when it was last set has been used; of a
planned training, where the steps to come would take more than is left. What stands is never written again. A step whose
slots do not fit all the same is kept without any, and once there is no room for what is logged of a step beside them,
recording ends.

Before the first slot is dropped, parameters of no layer are no longer kept step by step, and what they took until then
is no reason to drop slots.

Until files are measured again, rows count twice, since they may stand in a journal and in segments at one time, and
what becomes rows of tables four times, for DuckDB's log and its copies. They are measured before the share is halved,
and before anything is left out for want of room, so that these estimates never add up.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

TABLES_BYTES = 6 << 20
"""What tables come to take before long, whatever is in them: DuckDB gives each column a block of its own."""
_COMMIT_BYTES, _COMMIT_SHARE = 8 << 20, 64
"""Held back for one commit, in which DuckDB writes the last rows of its tables again, and one part in so many of the
budget."""
_PLANNED = 0.9
"""Of what is left, what a planned training is to fill: later batches may be larger than the first."""
_SMALLEST = 2.0**-40


@dataclass(frozen=True)
class Bytes:
    """What something takes once it stands in the memory, about."""

    rows: int = 0
    """Of keys, values and other parameters, which lie in files of their own."""
    tables: int = 0
    """Of what is said of them."""
    files: int = 0
    """Of files that are written at once, as a query set's."""

    @property
    def whole(self) -> int:
        return self.rows + self.tables + self.files

    @property
    def most(self) -> int:
        """Until it is measured."""
        return 2 * self.rows + 4 * self.tables + self.files

    def __add__(self, other: Bytes) -> Bytes:
        return Bytes(self.rows + other.rows, self.tables + other.tables, self.files + other.files)


class Budget:
    """That of one process. Used on the training's own thread."""

    def __init__(
        self, limit: int, measure: Callable[[], int], ending: int, steps: int | None, share: float, others: int = 0
    ) -> None:
        """`limit`: how many bytes; `measure`: makes what was recorded durable, and tells the bytes that all files take;
        `ending`: bytes that are written as the training ends; `steps`: how many are planned; `share`: to begin with;
        `others`: bytes that parameters of no layer take a step, on average.
        """
        self.share = share
        self._room, self._measure, self._steps = limit - held_back(limit) - ending, measure, steps
        self._begun = self._measured = measure()
        self._rows, self._tables = 0, TABLES_BYTES
        """Bytes of rows that were recorded since, and of what tables come to take, how much is yet to come."""
        self._since = 0
        """What was recorded since then takes so many bytes at most."""
        self._when_set: int | None = None
        """What was left when the share was set; None before the first step."""
        self._logs, self._slots, self._seen = 0, 0, 0
        """Over all steps: bytes of logs, bytes that all slots would have taken, and how many steps."""
        self._most_logs = 0
        self._others, self._others_kept = others, 0
        """Bytes of other parameters: a step, 0 once they are no longer kept, and so far."""

    @property
    def left(self) -> int:
        return self._room - self._measured - self._tables - self._since

    @property
    def spare(self) -> int:
        """What is left beside what is logged of another step."""
        return self.left - 2 * self._most_logs

    @property
    def used_up(self) -> bool:
        """Whether there is no room for what is logged of another step. Raises what went wrong with writing."""
        if self._since and self.spare < 0:
            self.measure()
        return self.spare < 0

    @property
    def keeps_others(self) -> bool:
        """Whether parameters of no layer are kept step by step."""
        return self.share == 1 and self._others > 0

    def stop_others(self) -> None:
        """Parameters of no layer are not kept any more, and what they took does not count against slots."""
        self._others = 0
        if self._when_set is not None:
            self._when_set -= self._others_kept

    def measure(self) -> None:
        """Everything recorded so far becomes durable, and is measured in place of being estimated."""
        self._measured, self._since = self._measure(), 0
        grown = self._measured - self._begun - self._rows
        self._tables = min(self._tables, max(0, TABLES_BYTES - grown))

    def share_of(self, slots: Bytes, logs: Bytes) -> float:
        """The share of the next step, which has such slots, and of which so much is logged. Raises what went wrong with
        writing.
        """
        self._seen += 1
        self._slots, self._logs = self._slots + slots.whole, self._logs + logs.whole
        self._most_logs = max(self._most_logs, logs.most)
        if self._when_set is None:
            self._when_set = self.left
            if self._to_come > 0 and slots.whole:
                self._plan(slots.whole)
        while self.share > _SMALLEST and self.left > 0 and self._too_large(slots):
            if self._since:
                self.measure()
            elif self.keeps_others:
                self.stop_others()
            else:
                self.share, self._when_set = self.share / 2, self.left
        return self.share

    def _plan(self, slots: int) -> None:
        """Set the share to what fits of a planned training, a step of which has so many bytes of slots; where there is
        no room for what is logged of its steps, it is not reached anyway.
        """
        if self.keeps_others and _PLANNED * self._for_slots < self._to_come * slots:
            self.stop_others()
        if self._for_slots > 0:
            self.share = min(self.share, max(_PLANNED * self._for_slots / (self._to_come * slots), _SMALLEST))

    def _too_large(self, slots: Bytes) -> bool:
        """Whether the share is."""
        assert self._when_set is not None
        if self.share * slots.most > self.left / 2:  # this step would take half of it, or more
            return True
        if self._to_come > 0 and self._for_slots > 0:
            return self.share * self._slots / self._seen * self._to_come > self._for_slots
        return self.left < self._when_set / 2

    @property
    def ends_at(self) -> int | None:
        """The step at which the logs of a planned training alone would fill what is left; None where they do not."""
        if self._to_come <= 0 or self._for_slots > 0:
            return None
        return self._seen + max(0, int(self.left // (self._logs / self._seen)))

    @property
    def _to_come(self) -> int:
        """How many of the planned steps, this one among them."""
        return 0 if self._steps is None else self._steps - self._seen + 1

    @property
    def _for_slots(self) -> float:
        """Of what is left, what the planned steps do not need beside their slots."""
        others = self._others if self.keeps_others else 0
        return self.left - (self._logs / self._seen + others) * self._to_come

    def fits(self, recorded: Bytes) -> bool:
        """Raises what went wrong with writing."""
        if recorded.most > self.left and self._since:
            self.measure()
        return recorded.most <= self.left

    def admits(self, recorded: Bytes, others: Bytes) -> tuple[bool, bool]:
        """Whether there is room for a step's slots, and for its parameters of no layer, which go first.

        `recorded`: the step beside these `others`. Raises what went wrong with writing.
        """
        if self.fits(recorded + others):
            return True, True
        if others.whole:
            self.stop_others()
        return self.fits(recorded), False

    def charge(self, recorded: Bytes, others: int = 0) -> None:
        """This is being recorded; `others`: bytes of it that are of parameters of no layer."""
        self._since += recorded.most
        self._rows += recorded.rows + recorded.files
        self._others_kept += others


def held_back(limit: int) -> int:
    """What of a budget is never filled."""
    return _COMMIT_BYTES + limit // _COMMIT_SHARE
