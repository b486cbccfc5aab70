"""Models that play against their twins, and properties, for long: the everyday tests try a few examples of each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test
from tests.unit.cluster.test_controller_model import ControllerModel
from tests.unit.groups.consumer import test_assignors as shares
from tests.unit.groups.consumer.test_consumer_model import ConsumerGroupMachine
from tests.unit.groups.test_model import GroupMachine
from tests.unit.joint.test_model import JointMachine
from tests.unit.membership import test_assignors as hosted_shares
from tests.unit.queues import test_intervals as intervals
from tests.unit.queues import test_lanes as lanes
from tests.unit.records import test_batch_properties as batches
from tests.unit.records import test_plain as plain
from tests.unit.schedules import test_cron as cron
from tests.unit.schedules import test_places as places
from tests.unit.spark import test_arrow as arrow
from tests.unit.storage import test_garbage as garbage
from tests.unit.storage.test_model import LogAgainstList
from tests.unit.storage.test_transactions import TransactionsAgainstList
from tests.unit.transactions.test_model import TransactionMachine

MODELS = (
    ConsumerGroupMachine,
    ControllerModel,
    GroupMachine,
    JointMachine,
    LogAgainstList,
    TransactionMachine,
    TransactionsAgainstList,
)
EXAMPLES_OF = (shares, hosted_shares, intervals, lanes, batches, plain, cron, places, arrow, garbage)
PROPERTIES = [
    pytest.param(test, id=f"{module.__name__.rpartition('.')[2]}-{name}")
    for module in EXAMPLES_OF
    for name, test in vars(module).items()
    if name.startswith("test_") and getattr(test, "is_hypothesis_test", False) and not hasattr(test, "pytestmark")
]


@pytest.mark.soak
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
def test_a_model_does_as_its_twin_for_long(model: type[RuleBasedStateMachine]) -> None:
    run_state_machine_as_test(model, settings=settings(model.TestCase.settings, max_examples=1_000, derandomize=False))


@pytest.mark.soak
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("property_", PROPERTIES)
def test_a_property_holds_for_long(property_: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> None:
    usual: Any = property_._hypothesis_internal_use_settings  # type: ignore[attr-defined]
    long = settings(usual, max_examples=3_000, derandomize=False)
    monkeypatch.setattr(property_, "_hypothesis_internal_use_settings", long)
    property_()
