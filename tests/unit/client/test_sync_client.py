"""The sync client is made from the async one, and has the same API."""

from __future__ import annotations

import importlib.util
import inspect
from pathlib import Path
from types import ModuleType

import pytest

import penstock
from penstock.client.generated import sync
from penstock.client.portal import Portal
from penstock.errors import ClientClosed

ROOT = Path(__file__).parents[3]
TWINS = ("Client", "Consumer", "Groups", "Queue", "QueueMessage", "Schedules", "Topics", "Transaction")


def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("sync_client", ROOT / "tools" / "sync_client.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_generated_client_is_up_to_date() -> None:
    made = generator()
    assert made.TARGET.read_text() == made.generate(), "run ./dev sync-client"


@pytest.mark.parametrize("name", TWINS)
def test_both_halves_have_the_same_methods_with_the_same_parameters(name: str) -> None:
    assert methods_of(getattr(penstock, name)) == methods_of(getattr(penstock, f"Async{name}"))
    assert getattr(penstock, name) is getattr(sync, name)


def methods_of(kind: type) -> dict[str, str]:
    """Each public method with its parameters, as written, and their defaults."""
    return {
        name: str(inspect.signature(member).replace(return_annotation=inspect.Signature.empty))
        for name, member in inspect.getmembers(kind, inspect.isfunction)
        if not name.startswith("_")
    }


@pytest.mark.parametrize("name", TWINS)
def test_every_public_sync_method_has_a_docstring_of_its_own_half(name: str) -> None:
    for method in methods_of(getattr(penstock, name)):
        text = getattr(getattr(penstock, name), method).__doc__
        assert text
        assert "Async" not in text
        assert "await" not in text


def test_a_closed_client_refuses_calls_and_may_be_closed_again() -> None:
    client = penstock.Client("http://127.0.0.1:1")
    assert repr(client) == "<Client of http://127.0.0.1:1>"
    assert repr(client.queue("orders", "billing")) == "<Queue orders of group billing>"
    client.close()
    client.close()
    with pytest.raises(ClientClosed):
        client.topics.list()
    with pytest.raises(ClientClosed):
        client.send("orders", "x")


def test_a_portal_asks_for_pages_and_hands_out_items() -> None:
    asked: list[int] = []

    async def pages():  # type: ignore[no-untyped-def]
        for at in range(3):
            asked.append(at)
            yield [at, at + 10]

    portal = Portal("test-portal")
    try:
        items = portal.each(pages())
        assert asked == []
        assert next(items) == 0
        assert asked == [0], "the next page is fetched when this one is used up"
        assert list(items) == [10, 1, 11, 2, 12]
        with pytest.raises(StopIteration):
            portal.next(pages_that_end())
    finally:
        portal.stop()


async def pages_that_end():  # type: ignore[no-untyped-def]
    for never in ():
        yield never
