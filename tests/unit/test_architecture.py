"""The layers are what docs/architecture.md draws: imports point down, those for types too, and never in a circle."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src"
DRAWING = re.search(r"```layers\n(.*?)```", (ROOT / "docs" / "architecture.md").read_text(), re.DOTALL)
# State machines that decide and never perform: no event loop, socket, file, thread or clock.
CORES = (
    "penstock.consensus.raft",
    "penstock.consensus.controller",
    "penstock.features.queues.core",
    "penstock.features.groups.group",
    "penstock.features.groups.consumer",
    "penstock.features.transactions.transaction",
    "penstock.features.transactions.joint.transaction",
    "penstock.features.redrives.ledger",
    "penstock.features.schedules.machine",
    "penstock.records",
)
PERFORMING = {"asyncio", "concurrent", "os", "selectors", "socket", "subprocess", "threading", "time", "uvloop"}


def modules() -> dict[str, Path]:
    found: dict[str, Path] = {}
    for path in SOURCE.rglob("*.py"):
        if "generated" not in path.parts:
            found[".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")] = path
    return found


MODULES = modules()


def imports_of(path: Path) -> Iterator[str]:
    """All that a module imports, inside functions and for types alone too."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                yield full if full in MODULES else node.module
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


GRAPH = {name: {target for target in imports_of(path) if target != name} for name, path in MODULES.items()}


def layers() -> list[list[str]]:
    """The packages of each line of the drawing, the highest first."""
    assert DRAWING is not None, "docs/architecture.md has a block of layers"
    lines = [line.split("  ")[0] for line in DRAWING[1].splitlines() if line.strip()]
    return [[f"penstock.{name.strip()}" for name in line.split("|")] for line in lines]


def layer_of(module: str, drawn: list[list[str]]) -> int | None:
    for height, names in enumerate(drawn):
        if any(module == name or module.startswith(f"{name}.") for name in names):
            return height
    return None


def test_every_package_is_in_the_drawing() -> None:
    drawn = layers()
    above = {"penstock", "penstock.__main__"}  # names for users
    missing = {name for name in MODULES if name.startswith("penstock") and layer_of(name, drawn) is None}
    assert {name for name in missing if name not in above} == set()


def test_imports_point_down_the_drawing() -> None:
    drawn = layers()
    wrong = [
        f"{name} imports {target}"
        for name, targets in GRAPH.items()
        for target in targets
        if (here := layer_of(name, drawn)) is not None
        and (there := layer_of(target, drawn)) is not None
        and there < here
    ]
    assert wrong == []


def test_the_contract_of_the_linter_is_the_drawing() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    written = next(each["layers"] for each in contracts if each["name"] == "layers point down")
    assert [sorted(map(str.strip, line.split("|"))) for line in written] == [sorted(names) for names in layers()]


def test_no_module_is_imported_in_a_circle() -> None:
    order: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    circles: list[list[str]] = []

    def visit(name: str) -> None:
        order[name] = low[name] = len(order)
        stack.append(name)
        for target in GRAPH[name]:
            if target not in GRAPH:
                continue
            if target not in order:
                visit(target)
                low[name] = min(low[name], low[target])
            elif target in stack:
                low[name] = min(low[name], order[target])
        if low[name] == order[name]:
            at = stack.index(name)
            circle = stack[at:]
            del stack[at:]
            if len(circle) > 1:
                circles.append(sorted(circle))

    for name in GRAPH:
        if name not in order:
            visit(name)
    assert circles == []


def test_cores_decide_and_do_not_perform() -> None:
    cores = [name for name in MODULES if any(name == core or name.startswith(f"{core}.") for core in CORES)]
    assert len(cores) > 20
    assert [f"{name} imports {found}" for name in cores for found in sorted(GRAPH[name] & PERFORMING)] == []


def test_no_feature_takes_the_broker() -> None:
    takers = [name for name, targets in GRAPH.items() if "penstock.broker.broker" in targets]
    assert [name for name in takers if name.startswith(("penstock.features.", "penstock.machines."))] == []
