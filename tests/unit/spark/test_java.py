"""Which Java and which Python Spark gets."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from penstock.errors import InvalidConfig
from penstock.spark.sessions import ensure_python, has_java, packaged_java, session


def fake_java(directory: Path, told: str) -> str:
    directory.mkdir(parents=True)
    program = directory / "java"
    program.write_text(f"#!/bin/sh\necho '{told}' >&2\n")
    program.chmod(0o755)
    return str(directory)


def test_the_machines_java_is_used_if_it_will_do(tmp_path: Path) -> None:
    new = fake_java(tmp_path / "new", 'openjdk version "17.0.15" 2025-04-15')
    old = fake_java(tmp_path / "old", 'java version "1.8.0_402"')
    odd = fake_java(tmp_path / "odd", "what?")
    assert has_java({"PATH": new})
    assert not has_java({"PATH": old})
    assert not has_java({"PATH": odd})
    assert not has_java({"PATH": str(tmp_path)})


def test_a_home_is_taken_as_it_is_and_has_to_be_one(tmp_path: Path) -> None:
    fake_java(tmp_path / "home" / "bin", "")
    assert has_java({"JAVA_HOME": str(tmp_path / "home")})
    with pytest.raises(InvalidConfig, match="no bin/java"):
        has_java({"JAVA_HOME": str(tmp_path / "nowhere")})


def test_the_packaged_java_starts_without_the_module_that_it_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    home = packaged_java()
    assert home.is_relative_to(tmp_path)
    assert packaged_java() == home  # and what is there is left alone
    asked = [str(home / "bin" / "java"), "--add-modules=jdk.incubator.vector", "-Da=b c", "-version"]
    told = subprocess.run(asked, capture_output=True, text=True, check=True, timeout=60)
    assert 'version "21' in told.stderr


def test_a_cache_that_cannot_be_written_to_is_done_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert os.access(packaged_java() / "bin" / "java", os.X_OK)


def test_workers_start_without_sparks_archives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    ensure_python(is_local=True)
    program = os.environ["PYSPARK_PYTHON"]
    assert Path(program).is_relative_to(tmp_path)
    path = f"/spark/python/lib/pyspark.zip:/a b:/spark/python/lib/py4j-0.10.9.9-src.zip:{tmp_path}"
    told = subprocess.run(
        [program, "-c", "import os, sys; print(os.environ['PYTHONPATH'], sys.argv[1:])", "x y", "z"],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert told.stdout.strip() == f"/a b:{tmp_path} ['x y', 'z']"
    monkeypatch.setenv("PYSPARK_PYTHON", "my-own")
    ensure_python(is_local=True)
    assert os.environ["PYSPARK_PYTHON"] == "my-own"


def test_settings_that_are_none_of_sparks_are_refused() -> None:
    with pytest.raises(InvalidConfig, match="'shuffle' is no setting of Spark"):
        session(shuffle=2)
