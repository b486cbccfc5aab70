"""The page of access says what the table of operations says, and every need has a meaning in the model of rules."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from penstock.access.acls import AclResource
from penstock.access.roles import RIGHTS
from penstock.api.operation import Admits, Operation
from penstock.api.table import OPERATIONS
from penstock.operations.guard import LISTS, MAPPED

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "reference" / "access.md"


def test_the_page_has_the_table_of_operations() -> None:
    spec = importlib.util.spec_from_file_location("access_table", ROOT / "tools" / "access_table.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert "\n".join(module.lines()) in PAGE.read_text()


def test_the_page_has_the_rights_of_every_role() -> None:
    columns = (AclResource.TOPIC, AclResource.GROUP, AclResource.TRANSACTIONAL_ID, AclResource.CLUSTER)
    for role, rights in RIGHTS.items():
        cells = [", ".join(action.name for action in rights.get(kind, ())) or "–" for kind in columns]
        assert f"| `{role}` | {' | '.join(cells)} |" in PAGE.read_text()


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.name)
def test_every_operation_has_a_need_that_means_something(operation: Operation) -> None:
    assert operation.needs or operation.admits is not Admits.ALLOWED
    for need in operation.needs:
        action, resource = MAPPED[need.action, need.resource]
        is_answerable = (
            need.name is not None
            or resource is AclResource.CLUSTER
            or operation.request in LISTS
            or operation.name in {"create_producer", "open_transaction"}  # some resource of the kind is enough
        )
        assert is_answerable, f"{operation.name} needs {action.name} on every {resource.name}"
