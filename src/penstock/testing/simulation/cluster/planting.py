"""Known bugs, planted one at a time in the running code: a simulation that does not catch them proves nothing.

A mutant names a function, a text in it and what stands in its place. The function is made anew from the wrong text and
put where the right one was, so everybody who calls it meets the bug; afterwards the right one is put back.
"""

from __future__ import annotations

import importlib
import inspect
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple


class ClusterMutant(NamedTuple):
    """A bug by name: in ``target``, such as ``penstock.broker.partition:Partition.lead``, right becomes wrong."""

    name: str
    target: str
    right: str
    wrong: str
    is_of_quorum: bool = False  # shown by histories of a quorum alone, which are cheaper


@contextmanager
def planted(mutant: ClusterMutant) -> Iterator[None]:
    """Run with the bug in place."""
    owner, name = _find(mutant.target)
    original = inspect.getattr_static(owner, name)
    setattr(owner, name, _mutated(mutant, owner, original))
    try:
        yield
    finally:
        setattr(owner, name, original)


def check(mutant: ClusterMutant) -> None:
    """Raise `LookupError` if the text that the mutant changes is not there, or is there twice."""
    owner, name = _find(mutant.target)
    _mutated(mutant, owner, inspect.getattr_static(owner, name))


def _find(target: str) -> tuple[Any, str]:
    module_name, _, path = target.partition(":")
    owner: Any = importlib.import_module(module_name)
    *outer, name = path.split(".")
    for part in outer:
        owner = getattr(owner, part)
    return owner, name


def _mutated(mutant: ClusterMutant, owner: Any, original: Any) -> Any:
    if isinstance(original, property):
        assert original.fget is not None
        return property(_rewritten(mutant, owner, original.fget), original.fset)
    if isinstance(original, staticmethod):
        return staticmethod(_rewritten(mutant, owner, original.__func__))
    if isinstance(original, classmethod):
        return classmethod(_rewritten(mutant, owner, original.__func__))
    return _rewritten(mutant, owner, original)


def _rewritten(mutant: ClusterMutant, owner: Any, function: Callable[..., Any]) -> Callable[..., Any]:
    source = inspect.getsource(function)
    if source.count(mutant.right) != 1:
        raise LookupError(
            f"mutant {mutant.name!r}: its text is in {mutant.target} {source.count(mutant.right)} times, not once"
        )
    changed = textwrap.dedent(source.replace(mutant.right, mutant.wrong))
    body = changed[changed.index("async def " if inspect.iscoroutinefunction(function) else "def ") :]
    # Inside of another function, so that ``super()`` finds its class.
    text = "def _make(__class__):\n" + textwrap.indent(body, "    ") + f"\n    return {function.__name__}\n"
    space: dict[str, Any] = {}
    code = compile("from __future__ import annotations\n" + text, f"<mutant {mutant.name}>", "exec")
    exec(code, function.__globals__, space)  # noqa: S102
    made: Callable[..., Any] = space["_make"](owner)
    return made
