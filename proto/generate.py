"""The protocol definitions from the table of operations, and Python code from these: `./dev proto` writes both anew.

A test proves that they are up to date. What earlier clients could not live with is refused; `numbers.lock` remembers.

The definitions call their package ``penstock.v1``; in Python the modules live in `penstock.grpc.generated`, so the
imports among them are rewritten.
"""

from __future__ import annotations

import re
import shutil
import sys
import tempfile
from importlib.resources import files
from pathlib import Path
from typing import Final

from grpc_tools import protoc

from penstock.api.table import OPERATIONS
from penstock.grpc.definitions import Lock, definitions_of
from penstock.grpc.reference import page_of
from penstock.grpc.shapes import rpcs_of

DEFINITIONS: Final = Path(__file__).resolve().parent
TARGET: Final = DEFINITIONS.parent / "src" / "penstock" / "grpc" / "generated"
PAGE: Final = DEFINITIONS.parent / "docs" / "reference" / "operations.md"
LOCK: Final = DEFINITIONS / "penstock" / "v1" / "numbers.lock"
_PLUGINS: Final = ("protoc-gen-mypy", "protoc-gen-mypy_grpc")
_PACKAGE: Final = "penstock.grpc.generated"
_INIT: Final = '"""Made from `proto/` by `./dev proto`; not to be edited."""\n'


def define() -> dict[Path, str]:
    """The definitions, the lock and the page of the reference as they should be."""
    lock = Lock.of(LOCK.read_text())
    texts = definitions_of(rpcs_of(OPERATIONS), lock)
    made = {LOCK.with_name(name): text for name, text in texts.items()}
    return {**made, LOCK: lock.text(), PAGE: page_of(OPERATIONS)}


def generate(into: Path) -> None:
    """Write the modules of every definition into a directory."""
    definitions = sorted(str(path.relative_to(DEFINITIONS)) for path in DEFINITIONS.rglob("*.proto"))
    with tempfile.TemporaryDirectory() as scratch:
        arguments = [
            "protoc",
            f"--proto_path={DEFINITIONS}",
            f"--proto_path={files('grpc_tools') / '_proto'}",
            *(f"--plugin={name}={Path(sys.executable).with_name(name)}" for name in _PLUGINS),
            f"--python_out={scratch}",
            f"--grpc_python_out={scratch}",
            f"--mypy_out=quiet:{scratch}",
            f"--mypy_grpc_out=quiet:{scratch}",
            *definitions,
        ]
        if protoc.main(arguments) != 0:
            raise SystemExit("protoc refuses the definitions; see above.")
        shutil.rmtree(into, ignore_errors=True)
        into.mkdir(parents=True)
        for made in sorted(Path(scratch).rglob("*.py*")):
            if _is_wanted(made):
                (into / made.name).write_text(_rewritten(made.read_text()))
    (into / "__init__.py").write_text(_INIT)


def _is_wanted(path: Path) -> bool:
    """Definitions without a service need no module for one."""
    stem = path.name.split("_pb2_grpc")[0]
    if stem == path.name:
        return True
    return any("\nservice " in each.read_text() for each in DEFINITIONS.rglob(f"{stem}.proto"))


def _rewritten(text: str) -> str:
    text = re.sub(r"^from penstock\.v1 import", f"from {_PACKAGE} import", text, flags=re.MULTILINE)
    return re.sub(r"\bpenstock\.v1\.(\w+_pb2)\b", rf"{_PACKAGE}.\1", text)


if __name__ == "__main__":
    for path, text in define().items():
        path.write_text(text)
    generate(TARGET)
