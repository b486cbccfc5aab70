"""URIs stay URIs, and only what belongs to a checkpoint is removed from it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.errors import InvalidPipeline
from penstock.pipelines.definition import Definition
from penstock.pipelines.files import load
from penstock.pipelines.places import Checkpoint, absolute, beside, local_path, within
from penstock.pipelines.run import checkpoint_of

URIS = ["s3a://bucket/ck", "hdfs://node:8020/ck", "abfss://c@account/ck", "viewfs://x/ck", "gs://bucket/ck"]


@pytest.mark.parametrize("uri", [*URIS, "file:///srv/ck", "file:/srv/ck"])
def test_a_uri_stays_a_uri(tmp_path: Path, uri: str) -> None:
    definition = Definition(name="p", file=str(tmp_path / "p.yaml"), checkpoint=uri)
    assert checkpoint_of(definition) == uri
    assert absolute(uri, tmp_path) == uri
    assert within(uri, "sink") == f"{uri}/sink"


def test_paths_are_seen_from_the_file(tmp_path: Path) -> None:
    definition = Definition(name="p", file=str(tmp_path / "p.yaml"), checkpoint="ck")
    assert checkpoint_of(definition) == str(tmp_path / "ck")
    assert beside(definition, "/srv/ck") == "/srv/ck"
    assert within("/srv/ck/", "sink") == "/srv/ck/sink"


def test_a_file_uri_is_a_path_of_this_machine() -> None:
    assert local_path("file:///srv/my%20lake") == Path("/srv/my lake")
    assert local_path("file:/srv/lake") == Path("/srv/lake")
    assert local_path("lake") == Path("lake")
    assert [local_path(uri) for uri in (*URIS, "file://elsewhere/srv")] == [None] * 6


def test_a_checkpoint_is_not_among_the_data_of_a_node_unless_it_was(tmp_path: Path) -> None:
    definition = Definition(name="p", file=str(tmp_path / "p.yaml"))
    assert checkpoint_of(definition) == str(tmp_path / ".penstock-checkpoints" / "p")
    earlier = tmp_path / ".penstock" / "checkpoints" / "p"
    earlier.mkdir(parents=True)
    assert checkpoint_of(definition) == str(earlier)


@pytest.mark.parametrize(
    ("uses", "options"),
    [
        ("archive", "{topics: t, lake: 's3a://bucket/lake'}"),
        ("restore", "{lake: 'hdfs://node/lake'}"),
        ("replay", "{topic: t, lake: 'gs://bucket/lake'}"),
        ("dead-letters", "{path: 's3a://bucket/report'}"),
    ],
)
def test_what_we_write_ourselves_is_on_this_machine(tmp_path: Path, uses: str, options: str) -> None:
    path = tmp_path / "p.yaml"
    path.write_text(f"pipeline: p\nuses: {uses}\nwith:\n  {options}\n")
    with pytest.raises(
        InvalidPipeline, match=r"p\.yaml:4:\d+: \w+ cannot be at .*: give a path or a file:/// URI"
    ) as told:
        load(path)
    assert "have to be mounted" in told.value.message
    assert not (tmp_path / "s3a:").exists()
    path.write_text(path.read_text().replace("s3a://bucket", f"file://{tmp_path}").replace("gs://bucket", "/srv"))
    if "hdfs" not in options:
        assert load(path).uses == uses


CLASSIC: Any = SimpleNamespace(sparkContext=None)
CONNECT: Any = SimpleNamespace()


def test_only_what_runs_left_is_forgotten(tmp_path: Path) -> None:
    (tmp_path / "sink" / "offsets").mkdir(parents=True)
    (tmp_path / "sink" / "offsets" / "0").write_text("v1")
    (tmp_path / "plan.json").write_text("{}")
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "one.jpg").write_text("x")
    checkpoint = Checkpoint(f"file://{tmp_path}", CLASSIC)
    assert not checkpoint.is_new
    assert checkpoint.forget()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["photos"]
    assert checkpoint.is_new
    assert not checkpoint.forget()
    checkpoint.write("plan.json", b"{}")
    assert checkpoint.read("plan.json") == b"{}"
    assert checkpoint.read("other") is None


def test_over_connect_a_checkpoint_is_elsewhere(tmp_path: Path) -> None:
    with pytest.raises(InvalidPipeline, match="on the server's machine"):
        Checkpoint(str(tmp_path / "nowhere"), CONNECT).forget()
    with pytest.raises(InvalidPipeline, match="can only be used by queries"):
        Checkpoint("s3a://bucket/ck", CONNECT).read("plan.json")
