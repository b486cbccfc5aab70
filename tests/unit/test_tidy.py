"""Rules of the house that no linter knows. Numbers here may only go down."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "penstock"
MODULES = sorted(path for path in SOURCE.rglob("*.py") if "generated" not in path.parts)
VAGUE_NAMES = {"utils", "util", "helpers", "common", "manager", "base", "impl", "misc"}
UNFINISHED = ("TODO", "FIXME", "XXX", "HACK")
FUNCTION_LINES_MAX = 60


def name_of(path: Path) -> str:
    return str(path.relative_to(SOURCE))


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_a_module_says_what_it_is_and_is_finished(path: Path) -> None:
    text = path.read_text()
    tree = ast.parse(text)
    assert ast.get_docstring(tree), "a module opens with what it owns"
    assert path.stem not in VAGUE_NAMES, "a module is named by its one noun"
    assert not [word for word in UNFINISHED if word in text], "unfinished work belongs in an issue"


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_functions_are_short_enough_to_read_at_once(path: Path) -> None:
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    long = [
        f"{node.name} has {(node.end_lineno or node.lineno) - node.lineno + 1} lines"
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, functions) and (node.end_lineno or node.lineno) - node.lineno >= FUNCTION_LINES_MAX
    ]
    assert long == []


def test_every_format_that_code_points_to_is_described() -> None:
    docs = SOURCE.parents[1] / "docs" / "formats"
    for path in MODULES:
        for word in path.read_text().split():
            if word.startswith("docs/formats/"):
                assert (docs / word.removeprefix("docs/formats/").rstrip(".,;)`\"'")).exists(), (
                    f"{name_of(path)}: {word}"
                )
