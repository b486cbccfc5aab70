"""The sync client, made from the async one. `./dev sync-client` writes it anew; a test proves that it is up to date.

A sync class stands before an async one. Each public coroutine becomes a method with the same signature and docstring
that runs it through the client's portal; a method that returns an async object returns the sync one before it; an async
iterator, of which the async class has the pages (``_list_pages`` for ``list``), becomes an iterator. What this cannot
know is written by hand in `penstock.client.blocking`, and wins.
"""

from __future__ import annotations

import ast
import builtins
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parent.parent
CLIENT: Final = ROOT / "src" / "penstock" / "client"
TARGET: Final = CLIENT / "generated" / "sync.py"

_HEAD: Final = '''"""The client for programs without an event loop; any number of threads may share it.

Made from the async client by `./dev sync-client`; not to be edited.
"""

from __future__ import annotations
'''
_INIT: Final = '"""Made by `./dev sync-client`; not to be edited."""\n'


class Twin(NamedTuple):
    """A sync class, the module and the class that it is made from, and its base where that is not the usual one."""

    name: str
    module: str
    source: str
    base: str = ""


TWINS: Final = (
    Twin("QueueMessage", "leases", "AsyncQueueMessage"),
    Twin("Queue", "queue", "QueueCalls", "Blocking[QueueCalls[QueueMessage]]"),
    Twin("Consumer", "consuming", "AsyncConsumer"),
    Twin("Transaction", "transactions", "AsyncTransaction"),
    Twin("Topics", "admin", "AsyncTopics"),
    Twin("Groups", "admin", "AsyncGroups"),
    Twin("Schedules", "schedules", "AsyncSchedules"),
    Twin("Client", "client", "AsyncClient", "BlockingClient"),
)
_SYNC_NAMES: Final = {f"Async{twin.name}": twin.name for twin in TWINS} | {
    "AsyncIterator": "Iterator",
    "Leased": "QueueMessage",
}
# What prose says of event loops, and what it says of threads.
_PROSE: Final = (
    (r"``async (with|for)", r"``\1"),
    (r"`async (with|for)", r"`\1"),
    ("A client belongs to one event loop; any number of tasks may share it", "Any number of threads may share it"),
)

Function = ast.FunctionDef | ast.AsyncFunctionDef


def generate() -> str:
    """The module of all sync classes."""
    modules = {
        name: ast.parse((CLIENT / f"{name}.py").read_text()) for name in [*(t.module for t in TWINS), "blocking"]
    }
    by_hand = {node.name: set(_methods(node)) for node in _classes(modules["blocking"])}
    body = "\n\n\n".join(_twin(twin, _class(modules[twin.module], twin.source), by_hand) for twin in TWINS)
    return _formatted(f"{_HEAD}\n{_imports(body, modules)}\n\n\n{body}\n")


def _twin(twin: Twin, source: ast.ClassDef, by_hand: dict[str, set[str]]) -> str:
    if twin.name == "QueueMessage":  # its queue is a sync one, so its methods need only lose their awaits
        return ast.unparse(_WithoutAwaits().visit(source)).replace(twin.source, twin.name)
    base = twin.base or f"Blocking[{twin.source}]"
    lines = [f"class {twin.name}({base}):", f"    {_docstring(source)}", ""]
    lines += _constructor(twin, source)
    for name, method in _methods(source).items():
        is_public = not name.startswith("_") or name in {"__aenter__", "__aexit__", "__aiter__", "__anext__"}
        if is_public and name not in by_hand.get(base, ()):
            lines += [*_method(twin, method), ""]
    return "\n".join(lines)


def _constructor(twin: Twin, source: ast.ClassDef) -> Iterator[str]:
    """How the async object is made or taken, and which of its public attributes the sync one has."""
    attributes = [
        f"        self.{name} = {_SYNC_NAMES[made]}(self._portal, self._async.{name})"
        if (made := ast.unparse(value.func) if isinstance(value, ast.Call) else "") in _SYNC_NAMES
        else f"        self.{name} = self._async.{name}"
        for name, value in _attributes(source)
    ]
    if twin.name == "Client":
        made = _methods(source)["__init__"]
        yield f"    def __init__({_parameters(made)}) -> None:"
        yield f"        super().__init__({twin.source}({_arguments(made)}))"
    elif twin.name == "Queue":
        yield "    def __init__(self, portal: Portal, queue: AsyncQueue) -> None:"
        yield "        super().__init__(portal, queue._with_messages(QueueMessage, self))"
    yield from attributes
    yield ""


def _attributes(source: ast.ClassDef) -> Iterator[tuple[str, ast.expr]]:
    for node in ast.walk(_methods(source)["__init__"]):
        target = node.targets[0] if isinstance(node, ast.Assign) else None
        if isinstance(node, ast.Assign) and isinstance(target, ast.Attribute) and not target.attr.startswith("_"):
            yield target.attr, node.value


def _method(twin: Twin, method: Function) -> list[str]:
    name, call = method.name, f"self._async.{method.name}({_arguments(method)})"
    returned = _annotation(method.returns)
    head = f"    def {name}({_parameters(method)}) -> {returned}:"
    lines = [head, f"        {_docstring(method)}"] if ast.get_docstring(method) else [head]
    body = [ast.unparse(node) for node in method.body if not _is_docstring(node)]
    match name:
        case "__aenter__":
            enter = [] if body == ["return self"] else [f"        self._portal.call({call})"]
            return [f"    def __enter__(self) -> {twin.name}:", *enter, "        return self"]
        case "__aexit__":
            leave = "self.close()" if body == ["await self.close()"] else f"self._portal.call({call})"
            return [f"    def __exit__({_parameters(method)}) -> None:", f"        {leave}"]
        case "__aiter__":
            return [f"    def __iter__(self) -> {twin.name}:", "        return self"]
        case "__anext__":
            return [
                f"    def __next__(self) -> {returned}:",
                "        # Most messages are here already: only a new page is worth a switch to the other thread.",
                "        found = self._async._take()",
                "        return self._portal.next(self._async) if found is None else found",
            ]
    if any(isinstance(each, ast.Name) and each.id == "property" for each in method.decorator_list):
        return ["    @property", *lines, f"        return self._async.{name}"]
    if returned.startswith("Iterator["):
        return [*lines, f"        return self._portal.each(self._async._{name}_pages({_arguments(method)}))"]
    if isinstance(method, ast.FunctionDef):
        assert f"Async{returned}" in _SYNC_NAMES, (
            f"{twin.source}.{name} is neither a coroutine nor makes an async object"
        )
        return [*lines, f"        return {returned}(self._portal, {call})"]
    return [*lines, f"        {'' if returned == 'None' else 'return '}self._portal.call({call})"]


def _parameters(method: Function) -> str:
    return _translated(ast.unparse(method.args))


def _arguments(method: Function) -> str:
    """The parameters of a method handed on to another that takes the same."""
    given = method.args
    parts = [each.arg for each in [*given.posonlyargs, *given.args] if each.arg != "self"]
    parts += [f"*{given.vararg.arg}"] if given.vararg else []
    parts += [f"{each.arg}={each.arg}" for each in given.kwonlyargs]
    parts += [f"**{given.kwarg.arg}"] if given.kwarg else []
    return ", ".join(parts)


def _annotation(node: ast.expr | None) -> str:
    assert node is not None, "every method says what it returns"
    return _translated(ast.unparse(node))


def _translated(code: str) -> str:
    return re.sub(r"\w+", lambda word: _SYNC_NAMES.get(word[0], word[0]), code)


def _docstring(node: ast.ClassDef | Function) -> str:
    text = ast.get_docstring(node, clean=False) or ""
    for pattern, replacement in _PROSE:
        text = re.sub(pattern, replacement, text)
    return f'"""{_translated(text)}"""'


def _is_docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _classes(tree: ast.Module) -> list[ast.ClassDef]:
    return [node for node in tree.body if isinstance(node, ast.ClassDef)]


def _class(tree: ast.Module, name: str) -> ast.ClassDef:
    return next(node for node in _classes(tree) if node.name == name)


def _methods(node: ast.ClassDef) -> dict[str, Function]:
    return {each.name: each for each in node.body if isinstance(each, Function)}


class _WithoutAwaits(ast.NodeTransformer):
    """A class whose coroutines are functions that await nothing."""

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AST:
        self.generic_visit(node)
        return ast.copy_location(ast.FunctionDef(**dict(ast.iter_fields(node))), node)

    def visit_Await(self, node: ast.Await) -> ast.AST:
        self.generic_visit(node)
        return node.value


# -- imports and format ------------------------------------------------------------------------------------------------


def _imports(body: str, modules: dict[str, ast.Module]) -> str:
    """Imports of all names that the classes use, from where the async classes have them."""
    homes = {"Iterator": "collections.abc", "Portal": "penstock.client.portal"}
    for tree in modules.values():
        for node in tree.body:
            if isinstance(node, ast.ImportFrom):
                homes.update({alias.name: str(node.module) for alias in node.names})
            elif isinstance(node, ast.Import):
                homes.update({alias.name: "" for alias in node.names})
    for module, tree in modules.items():
        defined = [node.name for node in _classes(tree)]
        for node in tree.body:
            if isinstance(node, ast.Assign | ast.AnnAssign):
                target = node.targets[0] if isinstance(node, ast.Assign) else node.target
                defined += [target.id] if isinstance(target, ast.Name) else []
        homes.update(dict.fromkeys(defined, f"penstock.client.{module}"))
    made = ast.parse(body)
    known = {twin.name for twin in TWINS} | set(dir(builtins)) | {"found"}
    known |= {node.arg for node in ast.walk(made) if isinstance(node, ast.arg)}
    used = sorted({node.id for node in ast.walk(made) if isinstance(node, ast.Name)} - known)
    missing = [name for name in used if name not in homes]
    assert not missing, f"nothing says where {missing} come from"
    return "\n".join(f"from {homes[name]} import {name}" if homes.get(name) else f"import {name}" for name in used)


def _formatted(code: str) -> str:
    ruff = [str(Path(sys.executable).with_name("ruff"))]
    for verb in (["check", "--fix", "--quiet", "--select", "I,F401"], ["format", "--quiet"]):
        command = [*ruff, *verb, "--stdin-filename", str(TARGET), "-"]
        code = subprocess.run(command, input=code, text=True, capture_output=True, check=True, cwd=ROOT).stdout
    return code


def main() -> None:
    TARGET.parent.mkdir(exist_ok=True)
    TARGET.with_name("__init__.py").write_text(_INIT)
    TARGET.write_text(generate())


if __name__ == "__main__":
    main()
