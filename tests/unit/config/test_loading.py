"""Which source wins, and what is said about a wrong one."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.config.kinds import Address
from penstock.config.loading import SettingsError, SettingText, load
from penstock.config.settings import SETTINGS, Settings


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def write(text: str, name: str = "settings.yaml") -> Path:
    path = Path(name)
    path.write_text(text)
    return path


def problems_of(text: str, environ: dict[str, str] | None = None) -> list[str]:
    with pytest.raises(SettingsError) as caught:
        load(environ or {}, file=write(text))
    return caught.value.message.splitlines()


# -- precedence --------------------------------------------------------------------------------------------------------


def test_defaults_are_those_of_the_documentation() -> None:
    settings = load({}).settings
    assert settings == Settings()
    assert settings.storage.segment_bytes == 64 << 20
    assert settings.storage.index_interval_bytes == 4096
    assert settings.storage.fsync == "every"
    assert settings.defaults.topic.partitions == 3
    assert settings.defaults.topic.replication_factor is None
    assert settings.defaults.topic.retention_ms == 168 * 3_600_000
    assert settings.defaults.topic.retention_bytes == -1
    assert settings.defaults.delivery.visibility_timeout_ms == 30_000
    assert settings.defaults.delivery.max_retries == 2
    assert settings.defaults.delivery.dead_letters is True
    assert settings.groups.session_timeout_ms == 45_000
    assert settings.groups.heartbeat_interval_ms == 3_000


def test_each_source_wins_over_the_one_before_it() -> None:
    file = write("storage:\n  fsync: interval\n  sync_threads: 2\n  segment_bytes: 1MiB\nbroker:\n  node_id: 5\n")
    environ = {"PENSTOCK_STORAGE__FSYNC": "none", "PENSTOCK_STORAGE__SYNC_THREADS": "3"}
    loaded = load(
        environ,
        file=file,
        overrides={"storage.fsync": SettingText("every", "--fsync")},
        fallbacks={"broker.node_id": SettingText("7", "penstock dev"), "broker.rack": SettingText("a", "penstock dev")},
    )
    storage = loaded.settings.storage
    assert (storage.fsync, storage.sync_threads, storage.segment_bytes) == ("every", 3, 1 << 20)
    assert (loaded.settings.broker.node_id, loaded.settings.broker.rack) == (5, "a")
    assert loaded.origins["storage.fsync"] == "--fsync"
    assert loaded.origins["storage.sync_threads"] == "PENSTOCK_STORAGE__SYNC_THREADS"
    assert loaded.origins["storage.segment_bytes"] == "settings.yaml:4"
    assert loaded.origins["broker.node_id"] == "settings.yaml:6"
    assert loaded.origins["broker.rack"] == "penstock dev"
    assert loaded.origins["logging.level"] == "default"


def test_every_setting_can_be_given_in_the_environment_as_it_is_shown() -> None:
    environ = {setting.variable: setting.kind.show(setting.default) for setting in SETTINGS.values()}
    loaded = load(environ)
    assert loaded.settings == Settings()
    assert set(loaded.origins.values()) == set(environ)


def test_the_environment_names_the_file() -> None:
    file = write("broker: {node_id: 9}", "other.yaml")
    assert load({"PENSTOCK_CONFIG": str(file)}).settings.broker.node_id == 9


def test_a_file_named_penstock_yaml_is_found_by_itself() -> None:
    write("broker: {node_id: 9}", "penstock.yaml")
    loaded = load({})
    assert (loaded.settings.broker.node_id, loaded.file) == (9, Path("penstock.yaml"))


@pytest.mark.parametrize("text", ["", "# nothing\n", "null", "broker:\n", "broker:\n  # node_id: 3\nstorage: ~\n"])
def test_an_empty_file_or_section_changes_nothing(text: str) -> None:
    assert load({}, file=write(text)).settings == Settings()


def test_yaml_values_need_no_particular_type() -> None:
    text = 'broker:\n  node_id: "3"\n  kafka: "[::1]:9999"\n  auto_create_topics: no\n  rack: null\n'
    broker = load({}, file=write(text)).settings.broker
    assert (broker.node_id, broker.kafka, broker.auto_create_topics, broker.rack) == (
        3,
        Address("::1", 9999),
        False,
        None,
    )


# -- references --------------------------------------------------------------------------------------------------------


def test_references_take_the_environment_or_their_default() -> None:
    text = "broker:\n  node_id: ${NODE}\n  data_dir: ${BASE:/var/lib}/penstock-${NODE}\n  rack: ${RACK:}\n"
    broker = load({"NODE": "4"}, file=write(text)).settings.broker
    assert (broker.node_id, broker.data_dir, broker.rack) == (4, Path("/var/lib/penstock-4"), None)


def test_an_empty_variable_counts_as_missing() -> None:
    assert load({"NODE": ""}, file=write("broker: {node_id: '${NODE:6}'}")).settings.broker.node_id == 6


def test_a_doubled_dollar_is_no_reference() -> None:
    assert load({}, file=write("broker: {rack: '$${NODE}'}")).settings.broker.rack == "${NODE}"


def test_a_reference_to_nothing_is_an_error() -> None:
    [problem] = problems_of("broker:\n  node_id: ${NODE}\n")
    assert problem == (
        "settings.yaml:2: broker.node_id: the environment has no NODE; set it, or give a default: ${NODE:default}"
    )


def test_a_broken_reference_is_an_error() -> None:
    [problem] = problems_of("broker:\n  rack: ${NO-DE}\n")
    assert "settings.yaml:2: broker.rack: '${NO-DE}' has a reference that is not ${NAME}" in problem


# -- what is wrong -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("storage:\n  fsnc: every\n", "settings.yaml:2: storage.fsnc: there is no such setting; did you mean 'fsync'?"),
        ("strage: {fsync: every}\n", "settings.yaml:1: strage: there is no such setting; did you mean 'storage'?"),
        ("fsync: every\n", "settings.yaml:1: fsync: there is no such setting; did you mean storage.fsync?"),
        (
            "logging:\n  zzz: 1\n",
            "settings.yaml:2: logging.zzz: there is no such setting; known here are level, format",
        ),
        (
            "storage:\n  fsync: never\n",
            "settings.yaml:2: storage.fsync: 'never' is not one of the choices; give every, interval or none",
        ),
        (
            "broker:\n  node_id: one\n",
            "settings.yaml:2: broker.node_id: 'one' is not a whole number; give a whole number from 0 to 2147483647",
        ),
        ("broker: 3\n", "settings.yaml:1: broker: is a section and takes node_id, data_dir"),
        ("defaults:\n  topic: [1]\n", "settings.yaml:2: defaults.topic: is a section and takes partitions"),
        ("broker:\n  node_id: {a: 1}\n", "settings.yaml:2: broker.node_id: takes one value; give a whole number"),
        ("broker:\n  node_id: [1]\n", "settings.yaml:2: broker.node_id: takes one value"),
        ("broker:\n  node_id: 1\n  node_id: 2\n", "settings.yaml:3: broker.node_id: is there twice"),
        ("broker:\n  node_id:\n", "settings.yaml:2: broker.node_id: '' is not a whole number"),
        ("- 1\n", "settings.yaml:1: must be a mapping of sections"),
        ("broker: [\n", "settings.yaml:2: is not valid YAML"),
        ("a: &a {b: *a}\n", "settings.yaml:1: a: there is no such setting"),
        ("{{}: 1}\n", "settings.yaml:1: ?: there is no such setting"),
    ],
)
def test_a_wrong_file_is_told_with_line_and_path(text: str, problem: str) -> None:
    assert any(line.startswith(problem) for line in problems_of(text)), problems_of(text)


def test_everything_wrong_is_told_at_once() -> None:
    lines = problems_of("broker: {node_id: x, port: 1}\nstorage: {fsync: x}\n", {"PENSTOCK_LOGGING__LEVEL": "loud"})
    assert len(lines) == 4


def test_a_missing_file_is_an_error() -> None:
    with pytest.raises(SettingsError, match=r"nowhere.yaml: cannot be read: No such file"):
        load({}, file=Path("nowhere.yaml"))


def test_a_file_that_is_not_text_is_an_error() -> None:
    Path("binary.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(SettingsError, match=r"binary.yaml: is not UTF-8 text"):
        load({}, file=Path("binary.yaml"))


def test_an_unknown_variable_is_an_error_that_names_the_nearest() -> None:
    with pytest.raises(SettingsError, match=r"PENSTOCK_STORAGE__FSINC: .* did you mean PENSTOCK_STORAGE__FSYNC"):
        load({"PENSTOCK_STORAGE__FSINC": "none"})


def test_a_bad_value_in_the_environment_names_the_variable() -> None:
    with pytest.raises(SettingsError, match=r"PENSTOCK_STORAGE__FSYNC: storage.fsync: 'x' is not one of the choices"):
        load({"PENSTOCK_STORAGE__FSYNC": "x"})


def test_variables_that_kubernetes_makes_are_left_alone() -> None:
    loaded = load({"PENSTOCK_PORT": "tcp://10.0.0.1:9092", "PENSTOCK_SERVICE_HOST": "10.0.0.1", "PENSTOCK_URL": "x"})
    assert (loaded.settings, loaded.warnings) == (Settings(), ())
    more = ("PENSTOCK_HTTP_SERVICE_HOST", "PENSTOCK_HTTP_SERVICE_PORT_REST", "PENSTOCK_PORT_9092_TCP_ADDR")
    assert load(dict.fromkeys(more, "x")).warnings == ()


def test_a_variable_without_its_section_is_warned_about() -> None:
    [warning] = load({"PENSTOCK_NODE_ID": "3"}).warnings
    assert "did you mean PENSTOCK_BROKER__NODE_ID?" in warning


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("PENSTOCK_STORAGE_FSYNC", "did you mean PENSTOCK_STORAGE__FSYNC?"),
        ("PENSTOCK_DATADIR", "did you mean PENSTOCK_BROKER__DATA_DIR?"),
        ("PENSTOCK_BROKER_KAFKAA", "did you mean PENSTOCK_BROKER__KAFKA?"),
        ("PENSTOCK_XYZZY", "see `penstock config show` for all"),
    ],
)
def test_a_variable_that_is_no_setting_is_warned_about(name: str, meant: str) -> None:
    [warning] = load({name: "x"}).warnings
    assert warning == f"{name} is not a setting and has no effect; {meant}"


def test_an_unknown_flag_path_is_an_error() -> None:
    with pytest.raises(SettingsError, match=r"--set: broker.nodeid: there is no such setting; did you mean 'node_id'"):
        load({}, overrides={"broker.nodeid": SettingText("3", "--set")})


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("broker: {kafka: 'localhost:9000', http: 'localhost:9000'}", "is the Kafka listener's address too"),
        (
            "defaults: {topic: {replication_factor: 1, min_insync_replicas: 2}}",
            "2 replicas can never be in sync where topics have 1",
        ),
        ("cluster: {peers: '1@h:1,2@h:2'}", "a node of a cluster needs an address for the other nodes"),
        ("{broker: {internal: 'h:1'}, cluster: {peers: '2@h:2,3@h:3'}}", "must name this node too"),
        ("{broker: {internal: 'h:1'}, cluster: {peers: '1@h:2', join: 'h:3'}}", "not both"),
        ("broker: {internal: '0.0.0.0:9192'}", "cluster.token: is needed where other machines reach"),
        ("broker: {internal: '10.0.0.1:9192'}", "cluster.token: is needed where other machines reach"),
        ("cluster: {token: (hidden)}", "give the secret itself"),
        ("broker: {internal: '127.0.0.1:9092'}", "is another listener's address too"),
        ("cluster: {heartbeat_interval_ms: 2s}", "must be at most half of cluster.session_timeout_ms"),
        ("groups: {heartbeat_interval_ms: 60s}", "must be shorter than groups.session_timeout_ms"),
    ],
)
def test_values_that_contradict_each_other_are_an_error(text: str, reason: str) -> None:
    assert any(reason in line for line in problems_of(text))


@pytest.mark.parametrize(
    "text",
    [
        "broker: {internal: '127.0.0.1:9192'}",
        "broker: {internal: 'localhost:9192'}",
        "broker: {internal: '[::1]:9192'}",
        "{broker: {internal: '0.0.0.0:9192'}, cluster: {token: s}}",
    ],
)
def test_an_internal_address_on_loopback_needs_no_token(text: str) -> None:
    assert load({}, file=write(text)).settings.broker.internal is not None
