"""The page of the reference that lists every operation, made from the table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from penstock.api.operation import Operation
from penstock.grpc.definitions import PACKAGE
from penstock.grpc.legacy import NOT_IN_GRPC
from penstock.grpc.shapes import Rpc, rpcs_of, service_name

_HEAD: Final = f"""# Operations

Made from the table of operations (`penstock.api`) by `./dev proto`. Each operation is a request type of the Python
client (`client.call(Request(...))`), a route of [REST](rest.md) and, unless it says why not, a method of
[gRPC](grpc.md) in package `{PACKAGE}`. Limits, defaults and errors are the same everywhere.
"""


def page_of(operations: Sequence[Operation]) -> str:
    """The page, in Markdown."""
    rpcs = rpcs_of(operations)
    methods = {rpc.request: rpc for rpc in rpcs}
    lines = [_HEAD]
    for module in dict.fromkeys(row.request.__module__ for row in operations):
        name = module.rpartition(".")[2]
        lines += [f"## {service_name(name)}", "", "| request and method | REST | |", "|---|---|---|"]
        lines += [_line(row, methods.get(row.request)) for row in operations if row.request.__module__ == module]
        lines += [f"| stream `{rpc.name}` | | {rpc.summary} |" for rpc in rpcs if rpc.is_stream and rpc.service == name]
        lines.append("")
    return "\n".join(lines)


def _line(row: Operation, rpc: Rpc | None) -> str:
    kind = row.request.__name__
    called = f"`{kind}`" if rpc is None or rpc.name == kind else f"`{kind}`, method `{rpc.name}`"
    routes = ", ".join(f"`{route.method} {route.path}`" for route in row.routes)
    reason = f" Not in gRPC: {NOT_IN_GRPC[row.request]}" if rpc is None else ""
    return f"| {called} | {routes} | {row.summary}{reason} |"
