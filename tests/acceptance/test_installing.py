"""The built wheel, installed as a worker's machine has it: the client and the command line, and nothing of a server."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import venv
import zipfile
from collections.abc import Iterator, Mapping
from importlib.metadata import distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from tests.support.node import Node

ROOT = Path(__file__).parents[2]
SERVER_ONLY = {"google", "grpc", "grpc_health", "grpc_reflection", "prometheus_client", "re2", "starlette", "uvicorn"}
WORKER = """
import penstock

@penstock.worker("parcels-to-install")
def deliver(message):
    print("delivered", message.text, flush=True)
"""


def run(command: list[str | Path], **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=240, check=False, **options)  # type: ignore[call-overload, no-any-return]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel as `./dev build` makes it."""
    target = tmp_path_factory.mktemp("dist")
    done = run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(target)], cwd=ROOT)
    assert done.returncode == 0, done.stderr
    (built,) = target.glob("penstock_mq-*.whl")
    return built


def required(name: str, extras: frozenset[str] = frozenset()) -> Iterator[str]:
    """The distributions that installing one brings along, itself not counted."""
    for line in distribution(name).requires or ():
        requirement = Requirement(line)
        marker = requirement.marker
        if marker is None or any(marker.evaluate({"extra": extra}) for extra in (extras or {""})):
            yield requirement.name
            yield from required(requirement.name)


@pytest.fixture(scope="module")
def slim(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The commands of a new environment with the wheel and what it requires, no extra; made without an index."""
    home = tmp_path_factory.mktemp("slim")
    venv.create(home, symlinks=True)
    (site,) = home.glob("lib/python*/site-packages")
    for name in set(required("penstock-mq")):
        for file in distribution(name).files or ():
            if not file.parts[0].startswith(".."):
                (site / file).parent.mkdir(parents=True, exist_ok=True)
                if not (site / file).exists():
                    (site / file).symlink_to(file.locate())
    pip = [sys.executable, "-m", "pip", "--python", home, "install", "--quiet", "--no-index", "--no-compile", wheel]
    done = run(pip, env=clean())
    assert done.returncode == 0, done.stderr
    return home / "bin"


def clean(**extra: str) -> Mapping[str, str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("PENSTOCK_", "PYTHON"))}
    return {**inherited, **extra}


def test_the_slim_environment_has_nothing_of_a_server(slim: Path) -> None:
    script = "import importlib.util as u, penstock; print(penstock.__file__, [m for m in {} if u.find_spec(m)])"
    done = run([slim / "python", "-c", script.format(sorted(SERVER_ONLY))], env=clean())
    assert done.stdout.startswith(str(slim.parent)), done.stderr
    assert done.stdout.strip().endswith("[]")


@pytest.mark.slow
def test_a_worker_runs_without_the_parts_of_a_server(slim: Path, node: Node, tmp_path: Path) -> None:
    (tmp_path / "parcels.py").write_text(WORKER)
    env = clean(PENSTOCK_URL=node.http_url)
    for command in (
        ["topic", "create", "parcels-to-install"],
        ["queue", "send", "parcels-to-install", "to Rome", "to Oslo"],
    ):
        done = run([slim / "penstock", *command], env=env)
        assert done.returncode == 0, done.stderr
    worker = subprocess.Popen(
        [slim / "penstock", "worker", "parcels:deliver"], env=env, cwd=tmp_path, stdout=subprocess.PIPE, text=True
    )
    try:
        assert worker.stdout is not None
        assert {worker.stdout.readline(), worker.stdout.readline()} == {"delivered to Rome\n", "delivered to Oslo\n"}
        worker.terminate()
        assert worker.wait(60) == 0
    finally:
        worker.kill()
    read = run([slim / "penstock", "consume", "parcels-to-install", "-o", "value"], env=env)
    assert sorted(read.stdout.split("\n")) == ["", "to Oslo", "to Rome"]


@pytest.mark.parametrize("command", [["serve", "--data-dir", "data"], ["dev"]], ids=lambda command: command[0])
def test_a_node_that_lacks_its_parts_names_the_line_that_installs_them(
    slim: Path, wheel: Path, tmp_path: Path, command: list[str]
) -> None:
    done = run([slim / "penstock", *command], env=clean(), cwd=tmp_path)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    (line,) = re.findall(r"pip install '(.+)'", done.stderr)
    assert line == f"penstock-mq[server] @ {wheel.as_uri()}"
    assert list(tmp_path.iterdir()) == []


def test_a_pipeline_without_spark_names_the_line_that_installs_it(slim: Path, node: Node, tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text(
        "pipeline: p\nsources:\n  a: {topics: a}\nsteps:\n  b: SELECT * FROM a\nsinks:\n  c: {from: b, topic: c}\n"
    )
    env = clean(PENSTOCK_URL=node.http_url)
    run([slim / "penstock", "topic", "create", "a"], env=env, cwd=tmp_path)
    done = run([slim / "penstock", "pipeline", "run", "p.yaml", "--once"], env=env, cwd=tmp_path)
    assert done.returncode == 1
    assert "pip install 'penstock-mq[spark] @ file://" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_wheel_leaves_the_simulator_out_and_brings_what_users_test_with(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    simulator = tmp_path / "penstock" / "testing" / "simulation"
    assert sum(path.is_file() for path in simulator.rglob("*")) <= 5
    script = """
import penstock
from penstock.testing import VirtualBroker
with VirtualBroker() as broker:
    broker.create_topic("jobs")
    broker.publish("jobs", "one")
    print(penstock.__file__, [message.value for message in broker.receive("jobs")])
"""
    done = run([sys.executable, "-c", script], env=clean(PYTHONPATH=str(tmp_path)))
    assert done.stdout.split(" ", 1) == [str(tmp_path / "penstock" / "__init__.py"), "[b'one']\n"], done.stderr
