"""A host with several processes: how each of them differs from the node that was asked for."""

from __future__ import annotations

import pytest

from penstock.config.loading import load
from penstock.config.settings import Settings
from penstock.errors import StartupError
from penstock.node.processes import shard_environments

TOKEN = {"cluster__token": "a secret", "security__insecure": "true"}
CHOSEN = {f"PENSTOCK_{name.upper()}": value for name, value in TOKEN.items()}


def loaded(**variables: str) -> Settings:
    return load({f"PENSTOCK_{name.upper()}": value for name, value in variables.items()}).settings


def test_the_first_shard_is_the_node_itself_and_the_others_join_it() -> None:
    settings = loaded(
        broker__node_id="2", broker__data_dir="/d", broker__internal="h:7000", broker__kafka="h:9000", **TOKEN
    )
    first, second, third = (load({**chosen, **CHOSEN}).settings for chosen in shard_environments(settings, 3))
    assert first.broker.internal == settings.broker.internal
    assert first.cluster.join is None
    assert [shard.broker.node_id for shard in (second, third)] == [2001, 2002]
    assert [str(shard.broker.internal) for shard in (second, third)] == ["h:7001", "h:7002"]
    assert [str(shard.broker.kafka) for shard in (second, third)] == ["h:9001", "h:9002"]
    assert [str(shard.broker.data_dir) for shard in (second, third)] == ["/d/shards/1", "/d/shards/2"]
    assert {str(shard.cluster.join) for shard in (second, third)} == {"h:7000"}
    assert {shard.broker.rack for shard in (first, second, third)} == {"host-2"}


def test_copies_on_one_host_are_not_made_by_default() -> None:
    shards = [load(chosen).settings for chosen in shard_environments(loaded(), 2)]
    assert {shard.defaults.topic.replication_factor for shard in shards} == {1}
    assert {shard.cluster.voters for shard in shards} == {1}
    peers = loaded(broker__internal="h:1", cluster__peers="1@h:1,2@i:1,3@j:1", **TOKEN)
    variables = shard_environments(peers, 2)
    assert not any("REPLICATION_FACTOR" in name for chosen in variables for name in chosen)


def test_an_id_that_leaves_no_room_for_shards_is_refused() -> None:
    with pytest.raises(StartupError, match="below 1000"):
        shard_environments(loaded(broker__node_id="1000"), 2)
