"""Reading the log that a coordinator keeps its state in, when the log may be damaged.

A state that was rebuilt without some of its changes is wrong in ways that no client can see. So a damaged log is not
replayed: the node waits until a sound replica leads, which ends the wait here, or until the cluster has found that no
replica has the records, which is logged and shown with the topic.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final, TypeVar

from penstock.errors import DamagedRecords

log = logging.getLogger(__name__)

_LOOK_AGAIN_S: Final = 0.25

StateT = TypeVar("StateT")


async def read_when_sound(read: Callable[[], StateT], is_wanted: Callable[[], bool], what: str) -> StateT | None:
    """What ``read`` finds, in a thread, once it meets no damage; None if it is not wanted any more."""
    is_told = False
    while True:
        try:
            return await asyncio.to_thread(read)
        except DamagedRecords as error:
            if not is_told:
                is_told = True
                log.error("The %s cannot be read yet: %s", what, error.message)
        await asyncio.sleep(_LOOK_AGAIN_S)
        if not is_wanted():
            return None
