"""No background task ends in silence: a bug in any of them is logged, counted and told, and the task begins anew."""

from __future__ import annotations

import ast
import asyncio
import logging
from pathlib import Path

import pytest
from tests.unit.broker.test_housekeeping import tell, until

import penstock
from penstock.broker.broker import Broker
from penstock.clock import SystemClock
from penstock.consensus.controller import TopicSpec
from penstock.consensus.quorum.controller import ControllerShell
from penstock.consensus.quorum.registration import Registration
from penstock.errors import NotLeader
from penstock.features.queues.leading.progress import QueueProgress
from penstock.machines.background_tasks import BackgroundTasks
from penstock.machines.clocks import PatientClock
from penstock.machines.coordinator import Coordinator
from penstock.partitions.replicas import Replicas
from penstock.partitions.replication.damaged import DamagedReplicas
from penstock.partitions.replication.replication import Replication
from penstock.partitions.scrub import Scrub
from penstock.supervision import Supervision

# Which task, and what it calls in every round: a method that the test has fail, and sees called again after that.
LOOPS: dict[str, tuple[type, str]] = {
    "heartbeats": (Registration, "_heartbeat"),
    "maintenance by the controller": (ControllerShell, "_maintain"),
    "bringing replicas in line with the metadata": (Replicas, "follow"),
    "the clock of coordinators": (PatientClock, "tick"),
    "upkeep of redrives": (BackgroundTasks, "_keep_up"),
    "progress of queues": (QueueProgress, "_look"),
    "upkeep of queues": (BackgroundTasks, "_keep_up"),
    "upkeep of schedules": (BackgroundTasks, "_keep_up"),
    "upkeep of groups": (BackgroundTasks, "_keep_up"),
    "upkeep of transactions": (BackgroundTasks, "_keep_up"),
    "handling damaged replicas": (DamagedReplicas, "scan"),
    "watching followers": (Replication, "_check_lag_forever"),
    "saving watermarks": (Replication, "_save_watermarks_forever"),
    "scrub": (Scrub, "run"),
}


@pytest.mark.parametrize("name", LOOPS)
def test_a_bug_in_a_loop_is_logged_counted_and_told_and_the_loop_begins_anew(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    owner, method = LOOPS[name]
    right = getattr(owner, method)
    calls: list[None] = []

    def broken(*_: object, **__: object) -> object:
        raise ZeroDivisionError("planted")

    def counted(*args: object, **kwargs: object) -> object:
        calls.append(None)
        return right(*args, **kwargs)

    async def story(broker: Broker) -> None:
        if method in {
            "_keep_up",
            "_check_lag_forever",
            "_save_watermarks_forever",
            "run",
        }:  # one call for ever
            _restart(broker, name)
        if owner is Replicas:
            broker._in_step.apply_all()
        await until(lambda: name in broker.supervision.failures)
        assert name in {trouble for trouble, _ in broker.supervision.troubles()}
        monkeypatch.setattr(owner, method, counted)
        if owner is Replicas:
            await broker.create_topic(TopicSpec(name="t", partitions=1))
        await until(lambda: bool(calls))

    async def planted(broker: Broker) -> None:
        monkeypatch.setattr(owner, method, broken)
        try:
            await story(broker)
        finally:
            monkeypatch.setattr(owner, method, right)

    with caplog.at_level(logging.ERROR):
        tell(tmp_path, planted)
    # By its records: how they are formatted is up to the handlers that other tests have left.
    logged = [record for record in caplog.records if record.getMessage() == f"The background task {name!r} failed."]
    assert any(record.exc_info and isinstance(record.exc_info[1], ZeroDivisionError) for record in logged)


def _restart(broker: Broker, name: str) -> None:
    """Begin such a task once more, as the node does at its start."""
    match name:
        case "upkeep of redrives":
            Coordinator.start(broker._redrives)
        case "upkeep of queues":
            broker.queues.coordinator.start()
        case "upkeep of schedules":
            broker.schedules.coordinator.start()
        case "upkeep of groups":
            Coordinator.start(broker.groups)
        case "upkeep of transactions":
            Coordinator.start(broker.transactions)
        case "scrub":
            broker._housekeeping._tasks.append(broker.supervision.start(name, lambda: broker.scrub.run()))
        case "watching followers":
            start = broker.supervision.start(name, lambda: broker.replication._check_lag_forever())
            broker.replication._tasks.append(start)
        case "saving watermarks":
            start = broker.supervision.start(name, lambda: broker.replication._save_watermarks_forever())
            broker.replication._tasks.append(start)


def test_a_task_that_is_done_once_is_noted_if_it_fails_and_only_then() -> None:
    async def story() -> None:
        supervision = Supervision(SystemClock())

        async def fail() -> None:
            raise ZeroDivisionError

        async def end() -> None:
            return

        tasks = [asyncio.ensure_future(work()) for work in (fail, end, asyncio.Event().wait)]
        for task in tasks:
            supervision.watch("once", task)
        tasks[2].cancel()
        await asyncio.wait(tasks)
        await asyncio.sleep(0)
        assert supervision.failures == {"once": 1}

    asyncio.run(story())


def test_a_bug_in_a_timer_is_counted_and_a_broken_connection_is_not() -> None:
    async def story() -> None:
        supervision = Supervision(SystemClock())
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(supervision.note_unhandled)

        def fail(error: Exception) -> None:
            raise error

        for error in (ZeroDivisionError(), ConnectionResetError(), NotLeader("led elsewhere")):
            loop.call_soon(fail, error)
        await asyncio.sleep(0.01)
        assert supervision.failures == {"event loop": 1}

    asyncio.run(story())


# Where tasks are begun otherwise, and who hears of what goes wrong in them.
CALLERS = {
    "supervision.py": "this is it",
    "node/server.py": "the start and the stop of the node, which waits for them",
    "consensus/quorum/client.py": "a call that its caller waits for",
    "consensus/quorum/controller.py": "decisions, whose callers wait for them; its maintenance notes what fails",
    "consensus/quorum/driver.py": "the writer: a bug ends the member's part in the quorum, which /readyz tells",
    "consensus/quorum/registration.py": "a wait for an event",
    "network/route.py": "links, begun anew by the next message; a bug goes to the event loop's handler",
    "network/service.py": "answers, whose error is sent to the caller",
    "features/messages/batches.py": "parts of a request",
    "features/messages/publishing.py": "parts of a request",
    "partitions/access.py": "parts of a request",
    "features/groups/hosted/member.py": "part of a request",
    "features/groups/hosted/seat.py": "a round of a group, which the member's next call hears of",
    "features/transactions/joint/publishing.py": "part of a request",
    "machines/background_tasks.py": "watched",
    "partitions/replication/fetcher.py": "watched",
    "partitions/replication/proposals.py": "watched",
    "features/queues/queues.py": "parts of a request",
    "features/dead_letters/writer.py": "noted when it ends, or watched",
    "features/queues/leading/sources.py": "a batch opened in a thread, which its callers wait for; the rest is watched",
    "features/queues/leading/shard.py": "watched, or notes what fails",
    "operations/asking.py": "an operation for another node, which gets its error",
    "operations/caller.py": "a wait of a request, which its caller hears of",
    "operations/queues.py": "part of a request",
    "doors/kafka/dispatch.py": "a request; a bug closes its connection",
    "doors/kafka/login.py": "a login; a bug closes its connection",
    "doors/kafka/produce.py": "a request; a bug closes its connection",
    "features/messages/delayed_batches.py": "part of a request",
}
DOORS = (("doors", "rest"), ("doors", "websocket"), ("doors", "grpc"))  # tasks of a connection or a request
OTHERS = ("client", "spark", "cli", "testing", "pipelines")  # not in a node


def test_every_task_is_supervised_or_has_a_caller_who_hears_of_it() -> None:
    root = Path(penstock.__file__).parent
    found = {
        str(path.relative_to(root))
        for path in root.rglob("*.py")
        if path.relative_to(root).parts[0] not in OTHERS
        and path.relative_to(root).parts[:2] not in DOORS
        and _begins_tasks(path)
    }
    assert found == set(CALLERS)


def _begins_tasks(path: Path) -> bool:
    names = {"create_task", "ensure_future"}
    return any(
        isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in names
        for node in ast.walk(ast.parse(path.read_text()))
    )
