"""What all memories of one server share: its threads, its places, and its room for answers."""

from __future__ import annotations

from dualform_service.byte_room import ByteRoom
from dualform_service.config import ServiceConfig
from dualform_service.scheduling import Lanes, Places

UNREAD = 4
"""Answers of the largest size that may wait to be read at once."""


class Resources:
    """Of one server, however many memories it has."""

    def __init__(self, config: ServiceConfig) -> None:
        self.lanes = Lanes()
        self.answer_bytes = config.answer_bytes
        self.alone_places = Places(config.max_concurrent, "large questions", "--max-concurrent")
        """For what is asked alone, and may take long."""
        self.light_places = Places(config.max_small, "small questions", "--max-small")
        """For questions that may share their work, and are known to take little."""
        self.slow_places = Places(config.max_small, "small questions", "--max-small")
        """For the others that may share their work: they may wait long, and take no light one's place meanwhile."""
        self.lookup_places = Places(config.max_small, "look-ups", "--max-small")
        self.unread = ByteRoom(UNREAD * config.answer_bytes)

    def waiting(self) -> dict[str, int]:
        """How many wait for the thread of a lane, by its name."""
        return {lane.name: lane.waiting for lane in self.lanes.all}

    def close(self) -> None:
        """Returns when no question is worked on any more."""
        self.lanes.close()
