"""What holds for all tests."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator

import pytest

# The gRPC library would start threads in every process that is forked here, on its way to becoming a node.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")


@pytest.fixture(autouse=True)
def logging_as_it_was() -> Iterator[None]:
    """Tests that silence what they break on purpose leave nobody else deaf."""
    logger = logging.getLogger("penstock")
    state = logger.level, logger.propagate, logging.root.manager.disable
    yield
    logger.level, logger.propagate, logging.root.manager.disable = state
