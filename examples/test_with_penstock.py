"""Tests of an application that works off a queue, with the fixtures that Penstock brings along. Run it with pytest."""

from __future__ import annotations

from penstock import Client
from penstock.testing import Fate, VirtualBroker


def bill(client: Client) -> None:
    """The application: every order becomes an invoice."""
    queue = client.queue("orders", group="billing")
    for message in queue.receive(10, wait=5):
        client.publish("invoices", b"invoice for " + message.value)
        message.ack()


def test_an_order_becomes_an_invoice(penstock_url: str) -> None:
    with Client(penstock_url) as client:
        client.publish("orders", b"shoes")
        bill(client)
        invoices = client.queue("invoices", group="test").receive(10, wait=5)
        assert [invoice.value for invoice in invoices] == [b"invoice for shoes"]


def test_an_order_that_fails_comes_again_after_three_days(virtual_penstock: VirtualBroker) -> None:
    broker = virtual_penstock
    broker.publish("orders", "shoes")
    (order,) = broker.receive("orders")
    broker.nack(order, delay_s=3 * 24 * 3600, reason="out of stock")
    broker.advance(days=2, hours=23)
    assert broker.receive("orders") == []
    broker.advance(hours=1)
    (again,) = broker.receive("orders")
    assert (again.value, again.delivery_count) == (b"shoes", 2)


def test_an_order_that_was_acked_stays_acked_whatever_a_crash_takes() -> None:
    for seed in range(10):
        with VirtualBroker(seed=seed) as broker:
            broker.publish("orders", "shoes")
            broker.publish("orders", "hats")
            shoes, _ = broker.receive("orders", max_messages=2)
            assert broker.ack(shoes) == [Fate.DONE]
            broker.crash()
            broker.restart()
            broker.advance(minutes=1)
            assert [order.value for order in broker.receive("orders", max_messages=2)] == [b"hats"]
