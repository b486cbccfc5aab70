"""Every model that plays against its twin, for long: the everyday tests play each of them a few times only."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test
from tests.unit.cluster.test_controller_model import ControllerModel
from tests.unit.groups.consumer.test_consumer_model import ConsumerGroupMachine
from tests.unit.groups.test_model import GroupMachine
from tests.unit.joint.test_model import JointMachine
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


@pytest.mark.soak
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
def test_a_model_does_as_its_twin_for_long(model: type[RuleBasedStateMachine]) -> None:
    run_state_machine_as_test(model, settings=settings(model.TestCase.settings, max_examples=1_000, derandomize=False))
