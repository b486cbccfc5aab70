"""Bugs, planted one at a time into the source as it is imported, to see whether the simulation catches them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, NamedTuple


class Mutant(NamedTuple):
    """A bug by name: in ``module``, ``right`` becomes ``wrong``."""

    name: str
    module: str
    right: str
    wrong: str


class Catch(NamedTuple):
    """How a bug was found out: by a story, by a seed of the swarm, or both, after so many seeds."""

    mutant: str
    story: str | None
    seed: int | None
    seeds: int
    proof: str | None

    @property
    def is_caught(self) -> bool:
        return self.story is not None or self.seed is not None


class _WrongLoader(SourceFileLoader):
    """Loads a module with a bug in it."""

    def __init__(self, mutant: Mutant, path: str) -> None:
        super().__init__(mutant.module, path)
        source = Path(path).read_text()
        if source.count(mutant.right) != 1:
            raise LookupError(f"mutant {mutant.name!r}: its text is there {source.count(mutant.right)} times, not once")
        self._source = source.replace(mutant.right, mutant.wrong)

    def get_code(self, fullname: str) -> CodeType:  # past the cache of compiled modules
        return compile(self._source, self.get_filename(fullname), "exec")


class _Planter(MetaPathFinder):
    def __init__(self, mutant: Mutant) -> None:
        self._mutant = mutant

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        spec = PathFinder.find_spec(fullname, path, target) if fullname == self._mutant.module else None
        if spec is not None and spec.origin is not None:
            spec.loader = _WrongLoader(self._mutant, spec.origin)
        return spec


@contextmanager
def planted(mutant: Mutant) -> Iterator[None]:
    """What is imported inside has the bug. All of ours is imported anew there, and is the old one again after."""
    saved = {name: module for name, module in sys.modules.items() if _is_ours(name)}
    for name in saved:
        del sys.modules[name]
    planter = _Planter(mutant)
    sys.meta_path.insert(0, planter)
    try:
        yield
    finally:
        sys.meta_path.remove(planter)
        for name in [name for name in sys.modules if _is_ours(name)]:
            del sys.modules[name]
        sys.modules.update(saved)


def _is_ours(name: str) -> bool:
    return name.partition(".")[0] in {"penstock", "sim"}


def hunt(mutant: Mutant, seeds: range, stories: str | None, run_seed: str, *, is_first_enough: bool = True) -> Catch:
    """Plant a bug and look for it with stories, and with the seeds of a swarm, each named as "module:name"."""
    story = seed = proof = None
    tried = 0
    with planted(mutant):
        for name, tell in () if stories is None else _import(stories).items():
            proof = _failure(tell)
            if proof is not None:
                story = name
                break
        run = _import(run_seed)
        for number in () if story and is_first_enough else seeds:
            tried += 1
            violation = run(number).violation
            if violation is not None:
                seed, proof = number, proof or violation
                break
    return Catch(mutant.name, story, seed, tried, proof)


def _import(name: str) -> Any:
    module, _, inside = name.partition(":")
    return getattr(import_module(module), inside)


def _failure(tell: Callable[[], None]) -> str | None:
    try:
        tell()
    except Exception as error:  # an oracle, an assertion of the story or of the core, a crash: each would be noticed
        return f"{type(error).__name__}: {error}"
    return None
