"""Every operation of the table, performed by the client's generic call on a real node, and answered with its type."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.support.operation_stories import REFUSED, STORIES, Told

from penstock import AsyncClient, Client, errors
from penstock.api import topics
from penstock.api.operation import TABLE, Packed, Request
from penstock.api.table import OPERATIONS

from .conftest import DoorInThread


def url_of(door: DoorInThread) -> str:
    return f"http://127.0.0.1:{door.server.port}"


def test_every_operation_is_performed_and_answered_with_its_type(door: DoorInThread, topic: str) -> None:
    asked: set[type[Request[Any]]] = set()

    async def test() -> None:
        async with AsyncClient(url_of(door)) as client, asyncio.timeout(120):
            for story in STORIES:
                told = Told()
                for request in story(told, topic):
                    told.answer = await client.call(request)
                    declared = TABLE[type(request)]
                    expected = declared.answer or (Packed if declared.has_packed else type(None))
                    assert type(told.answer) is expected, f"{declared.name} is answered with {told.answer!r}"
                    asked.add(type(request))
            for request, kind in REFUSED.items():
                with pytest.raises(kind):
                    await client.call(request)
                asked.add(type(request))

    asyncio.run(test())
    assert {each.request.__name__ for each in OPERATIONS} - {kind.__name__ for kind in asked} == set()


def test_the_sync_client_performs_operations_too(door: DoorInThread, topic: str) -> None:
    with Client(url_of(door)) as client:
        made = client.call(topics.CreateTopic(name=topic, partitions=3))
        assert made.partitions == 3
        with pytest.raises(errors.TopicExists):
            client.call(topics.CreateTopic(name=topic))
