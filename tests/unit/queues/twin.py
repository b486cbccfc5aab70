"""A queue that a child could check: a list of dicts, one for each message, and loops over all of them."""

from __future__ import annotations

from typing import Any

from penstock.consensus.queue_config import Lanes, Order, QueueSettings
from penstock.features.queues.core.messages import ReceiptOutcome

Message = dict[str, Any]


class Twin:
    """What should be true of each message."""

    def __init__(self, settings: QueueSettings) -> None:
        self.settings = settings
        self.messages: list[Message] = []
        self.start = 0  # where the group was moved to last; everything before is as good as acked
        self.is_paused = False
        self.pause_reason = ""
        self.acked_ever: set[int] = set()  # since the group was moved back

    @property
    def end(self) -> int:
        return len(self.messages)

    def publish(self, key: int | None, lane: int = 2) -> None:
        self.messages.append({"offset": self.end, "key": key, "lane": lane})
        self.renew(self.messages[-1])

    def renew(self, message: Message) -> None:
        message.update(state="ready", count=0, nonce=None, until=None, consumer=None, due=0, reason=None, held=None)

    def all(self, *states: str) -> list[Message]:
        return [message for message in self.messages[self.start :] if message["state"] in states]

    @property
    def committed(self) -> int:
        return next((message["offset"] for message in self.messages[self.start :] if message["state"] != "acked"), None)

    def committed_or(self, end: int) -> int:
        found = self.committed
        return max(self.start, end) if found is None else found

    # -- delivering ---------------------------------------------------------------------------------------------------

    def expected(self, consumer: str, limit: int, now: int) -> list[tuple[int, int]]:
        """What has to be offered: offsets and delivery counts, in order."""
        return self.free(now)[: min(limit, self.room(consumer))]

    def check_offer(self, offered: list[tuple[int, int]], consumer: str, limit: int, now: int) -> None:
        """Without shares it is known what has to be offered. With them it is as much, and the oldest of each source."""
        if not self.settings.has_shares:
            assert offered == self.expected(consumer, limit, now)
            return
        free = self.free(now)
        assert len(offered) == min(limit, self.room(consumer), len(free))
        assert len(dict(offered)) == len(offered), "a message is offered twice"
        counts = dict(free)
        by_source: dict[object, list[int]] = {}
        for offset, count in offered:
            assert counts.get(offset) == count, f"{offset} is not free, or was delivered {count - 1} times"
            by_source.setdefault(self.source(offset), []).append(offset)
        for source, offsets in by_source.items():
            oldest = sorted(offset for offset in counts if self.source(offset) == source)
            assert offsets == oldest[: len(offsets)], "within a source the oldest go first"

    def source(self, offset: int) -> object:
        message = self.messages[offset]
        lane = message["lane"] if self.settings.lanes is Lanes.ON else None
        return lane, message["key"] if self.settings.fair_by else None

    def room(self, consumer: str) -> int:
        leased = self.all("leased")
        mine = [message for message in leased if message["consumer"] == consumer]
        room = self.settings.in_flight_group_max - len(leased)
        if consumer != "":
            room = min(room, self.settings.in_flight_consumer_max - len(mine))
        return 0 if self.is_paused else max(0, room)

    def free(self, now: int) -> list[tuple[int, int]]:
        again = [m for m in self.all("waiting") if m["due"] <= now and self.may_go(m)]
        fresh = [m for m in self.all("ready") if self.may_go(m)]
        return [(m["offset"], m["count"] + 1) for m in again + fresh]

    def may_go(self, message: Message) -> bool:
        """Whether everything before it with its key is done."""
        if self.settings.order is not Order.KEY or message["key"] is None:
            return True
        earlier = self.messages[self.start : message["offset"]]
        return all(other["state"] == "acked" for other in earlier if other["key"] == message["key"])

    def lease(self, offset: int, count: int, nonce: str, until: int, consumer: str) -> None:
        message = self.messages[offset]
        assert message["state"] in ("ready", "waiting"), f"{message} has two leases or came back"
        assert message["count"] + 1 == count
        assert offset not in self.acked_ever, "an acked message came back"
        message.update(state="leased", count=count, nonce=nonce, until=until, consumer=consumer)

    # -- answers ------------------------------------------------------------------------------------------------------

    def fate(
        self, offset: int, count: int, nonce: str, is_genuine: bool, asks_for: int | str | None = None
    ) -> ReceiptOutcome:
        """What becomes of a receipt, told to who asks for a transaction, or only for "more time"."""
        if not is_genuine:
            return ReceiptOutcome.UNKNOWN
        if offset < self.committed_or(self.end):
            return ReceiptOutcome.ALREADY_ACKED
        if offset >= self.end:
            return ReceiptOutcome.UNKNOWN
        message = self.messages[offset]
        if message["state"] == "leased":
            if message["nonce"] != nonce:
                return ReceiptOutcome.REDELIVERED
            if message["count"] != count:
                return ReceiptOutcome.UNKNOWN
            if message["held"] is None or message["held"] == asks_for or asks_for == "more time":
                return ReceiptOutcome.DONE
            return ReceiptOutcome.IN_TRANSACTION
        return {
            "ready": ReceiptOutcome.UNKNOWN,
            "waiting": ReceiptOutcome.LEASE_OVER,
            "dying": ReceiptOutcome.DEAD_LETTERED,
            "acked": ReceiptOutcome.ALREADY_ACKED,
        }[message["state"]]

    def ack(self, offset: int) -> None:
        self.messages[offset].update(state="acked", held=None)
        self.acked_ever.add(offset)

    def end_transaction(self, producer: int, is_commit: bool) -> None:
        for message in self.messages:
            if message["held"] == producer:
                message["held"] = None
                if is_commit:
                    self.ack(message["offset"])

    def fail(self, offset: int, now: int, delay: int | None, reason: str) -> None:
        message = self.messages[offset]
        if self.settings.tries and message["count"] >= self.settings.tries:
            self.bury(offset, reason)
            return
        if delay is None:
            delay = min(self.settings.retry_cap_ms, int(self.settings.retry_base_ms * 2 ** (message["count"] - 1)))
        message.update(state="waiting", due=now + delay)

    def release(self, offset: int, now: int) -> None:
        message = self.messages[offset]
        message.update(state="waiting", due=now, count=message["count"] - 1)

    def bury(self, offset: int, reason: str) -> None:
        self.messages[offset].update(state="dying", reason=reason)

    def expire(self, now: int, reason: str) -> None:
        for message in self.all("leased"):
            if message["until"] <= now and message["held"] is None:
                self.fail(message["offset"], now, 0, reason)

    # -- the group ----------------------------------------------------------------------------------------------------

    def seek(self, offset: int) -> None:
        self.start = offset
        self.acked_ever.clear()
        for message in self.messages:
            message["held"] = None
        for message in self.messages[offset:]:
            self.renew(message)

    def finish_before(self, offset: int) -> None:
        for message in self.messages[self.start : offset]:
            message.update(state="acked", held=None)
