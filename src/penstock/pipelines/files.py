"""The file that a pipeline is declared in: YAML, or Python that makes a `Pipeline`."""

from __future__ import annotations

import importlib.util
import sys
import traceback
from pathlib import Path
from types import ModuleType

from penstock.errors import InvalidPipeline
from penstock.pipelines.definition import Definition, Pipeline, definition_of
from penstock.pipelines.ready import READY
from penstock.pipelines.text import FilePlace, FileProblem, read_text


def load(path: Path) -> Definition:
    """The pipeline of a file; `InvalidPipeline` with everything that is wrong with it, line by line."""
    name = str(path)
    try:
        content = path.read_text()
    except FileNotFoundError:
        raise InvalidPipeline(f"There is no file {name}. `penstock pipeline init {name}` writes one.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidPipeline(f"{name} cannot be read: {error}.") from error
    if path.suffix == ".py":
        document, steps = _pipeline_of(_module(path), name).document()
        definition = definition_of(document, name, steps)
    elif path.suffix in (".yaml", ".yml"):
        definition = definition_of(read_text(content, name), name, ready=READY)
    else:
        raise InvalidPipeline(f"{name} is neither YAML nor Python: name it NAME.yaml or NAME.py.")
    if definition.uses:
        READY[definition.uses].check(definition)
    return definition


def _module(path: Path) -> ModuleType:
    name = f"penstock_pipeline_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # so that what is defined there can be sent to other processes
    try:
        spec.loader.exec_module(module)
    except InvalidPipeline:
        raise
    except SyntaxError as error:
        place = FilePlace(error.lineno or 1, error.offset or 1)
        raise InvalidPipeline(FileProblem(place, f"this is not Python: {error.msg}.").told_of(str(path))) from error
    except Exception as error:
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
        place = FilePlace(lines[-1] or 1 if lines else 1, 1)
        words = f"{type(error).__name__}: {error}"
        raise InvalidPipeline(FileProblem(place, words).told_of(str(path))) from error
    return module


def _pipeline_of(module: ModuleType, name: str) -> Pipeline:
    found = {id(value): value for value in vars(module).values() if isinstance(value, Pipeline)}
    if len(found) != 1:
        said = "no pipeline" if not found else f"{len(found)} pipelines"
        raise InvalidPipeline(f"{name} has {said}: make one with `penstock.pipelines.Pipeline(NAME)`.")
    return next(iter(found.values()))
