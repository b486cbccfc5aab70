"""What follows from a queue's decisions and is no part of it: dead letters are buried, floods of failures counted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.broker.queues.letters.breaker import Breakers
from penstock.broker.queues.letters.burial import Burials

if TYPE_CHECKING:
    from penstock.broker.queues.core.queue import Queue
    from penstock.broker.queues.leading.shard import QueueShard


class Consequences:
    """Looks at a queue whenever something about it has changed."""

    def __init__(self, burials: Burials, breakers: Breakers) -> None:
        self.burials = burials
        self.breakers = breakers

    def on_changed(self, shard: QueueShard, queue: Queue) -> None:
        """Something about a queue was written and applied just now."""
        self.burials.look(queue, shard.request)
        tally = queue.take_tally()
        if queue.is_paused:
            self.breakers.reset(queue.topic, queue.id)  # so it counts from nothing when the group goes on
        else:
            self.breakers.note(queue.topic, queue.id, queue.settings, tally)

    def start(self) -> None:
        self.burials.serve()

    async def stop(self) -> None:
        await self.burials.stop()
        await self.breakers.stop()
