"""What holds for all tests."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

# The gRPC library would start threads in every process that is forked here, on its way to becoming a node.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

# How long an example takes says nothing on a machine that does a lot beside. The everyday tests try the same examples
# every time, so that whoever changed nothing breaks nothing; the long ones look for others.
_patient = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("everyday", _patient, derandomize=True)
settings.register_profile("long", _patient)


def pytest_configure(config: pytest.Config) -> None:
    """Before any test is read: what a test does not say about its examples is taken from the profile."""
    settings.load_profile("long" if config.option.markexpr == "soak" else "everyday")


@pytest.fixture(autouse=True)
def logging_as_it_was() -> Iterator[None]:
    """Tests that silence what they break on purpose leave nobody else deaf."""
    logger = logging.getLogger("penstock")
    state = logger.level, logger.propagate, logging.root.manager.disable
    yield
    logger.level, logger.propagate, logging.root.manager.disable = state
