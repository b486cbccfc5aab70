"""Print the table of docs/reference/access.md: what each operation needs, in the model of rules.

``python tools/access_table.py`` after a row was added or its needs changed; a test compares the page with it.
"""

from __future__ import annotations

from penstock.access.acls import AclResource
from penstock.api.operation import Admits, Needs, Operation, Resource
from penstock.api.table import OPERATIONS
from penstock.operations.guard import LISTS, MAPPED


def lines() -> list[str]:
    """The table, row by row, in the order of the operations' tags."""
    head = ["| operation | REST | needs |", "|---|---|---|"]
    ordered = sorted(OPERATIONS, key=lambda row: (row.tag, row.name))
    return [*head, *(f"| `{row.name}` | {_routes(row)} | {_needs(row)} |" for row in ordered)]


def _routes(row: Operation) -> str:
    return "<br>".join(f"`{route.method} {route.path}`" for route in row.routes)


def _needs(row: Operation) -> str:
    if row.admits is Admits.EVERYONE:
        return "nothing"
    if row.admits is Admits.AUTHENTICATED:
        return "a name"
    if row.request in LISTS:
        action, resource = MAPPED[row.needs[0].action, row.needs[0].resource]
        return f"a name; shows what the caller may {action.name} ({_kind(resource)})"
    return "<br>".join(dict.fromkeys(_need(need) for need in row.needs))


def _need(need: Needs) -> str:
    action, resource = MAPPED[need.action, need.resource]
    if resource is AclResource.CLUSTER:
        return f"{action.name} cluster"
    if need.name is None:
        return f"{action.name} on some {_kind(resource)}"
    if need.resource is Resource.SCHEDULE:
        return f"{action.name} {_kind(resource)} of the schedule"
    return f"{action.name} {_kind(resource)} `{need.name}`"


def _kind(resource: AclResource) -> str:
    return resource.name.lower().replace("_", " ")


if __name__ == "__main__":
    print("\n".join(lines()))
