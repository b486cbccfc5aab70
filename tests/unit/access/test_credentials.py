"""Principals, roles, SCRAM credentials, API keys, and what failures cost: the pure parts."""

from __future__ import annotations

import msgspec
import pytest

from penstock.access import api_keys, scram
from penstock.access.acls import AclAction, AclIndex, AclResource, decide
from penstock.access.failures import FIRST_WAIT_MS, FORGET_MS, FREE_TRIES, Failures
from penstock.access.principal import ANONYMOUS, Principal
from penstock.access.roles import Role, expand, find_role
from penstock.access.scram import ScramCredential, ScramMechanism
from penstock.errors import InvalidCredential, InvalidPrincipal, UnknownRole

SALT = bytes(range(32))


def test_a_principal_reads_as_it_is_written() -> None:
    assert str(Principal("alice")) == "User:alice"
    assert Principal.parse("User:CN=a,O=b:c") == Principal("CN=a,O=b:c")
    assert str(ANONYMOUS) == "User:ANONYMOUS"


@pytest.mark.parametrize(
    "text", ["", "alice", "User:", ":alice", "User: alice", "User:a\nb", "U r:x", "User:" + "x" * 256]
)
def test_what_is_no_principal_is_refused(text: str) -> None:
    with pytest.raises(InvalidPrincipal):
        Principal.parse(text)


def test_when_a_credential_ends_is_no_part_of_who_it_is() -> None:
    assert Principal("a", expires_ms=1) == Principal("a", expires_ms=2)
    assert Principal("a", key_id="k") != Principal("a")


# -- SCRAM -------------------------------------------------------------------------------------------------------------


def test_credentials_are_those_of_rfc_7677() -> None:
    """The example of RFC 7677, section 3, as keys: its user's password is 'pencil'."""
    import base64
    import hashlib
    import hmac

    salt = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
    credential = scram.derive(ScramMechanism.SHA_256, "pencil", salt, 4096)
    message = (
        b"n=user,r=rOprNGfwEbeRWgbNEkqO,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
        b"s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096,c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
    )
    signature = hmac.digest(credential.server_key, message, hashlib.sha256)
    assert base64.b64encode(signature) == b"6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


@pytest.mark.parametrize("mechanism", list(ScramMechanism))
def test_only_the_right_password_is_right(mechanism: ScramMechanism) -> None:
    credential = scram.derive(mechanism, "right ✓", SALT, 4096)
    assert scram.verify(credential, "right ✓")
    assert not scram.verify(credential, "wrong")


def test_no_representation_shows_a_credential() -> None:
    credential = scram.derive(ScramMechanism.SHA_256, "pw", SALT, 4096)
    _, text, kept = api_keys.make_text(b"\1" * 8, b"\2" * 32)
    key = api_keys.ApiKey(key_id="01" * 8, principal="User:a", secret_hash=kept, created_ms=0)
    shown = f"{credential!r} {key!r} {credential.__rich_repr__()} {key.__rich_repr__()}"
    for secret in (credential.stored_key, credential.server_key, credential.salt, kept):
        assert repr(secret) not in shown
        assert secret.hex() not in shown
    assert text not in shown


@pytest.mark.parametrize(
    "changes",
    [{"iterations": 4095}, {"iterations": 16385}, {"salt": b"short"}, {"stored_key": b"x"}, {"server_key": b""}],
)
def test_a_credential_that_no_client_could_use_is_refused(changes: dict[str, object]) -> None:
    good = scram.derive(ScramMechanism.SHA_512, "pw", SALT, 4096)
    with pytest.raises(InvalidCredential):
        scram.check(msgspec.structs.replace(good, **changes))


def test_a_credential_is_the_same_after_the_log() -> None:
    good = scram.derive(ScramMechanism.SHA_512, "pw", SALT, 4096)
    assert msgspec.json.decode(msgspec.json.encode(good), type=ScramCredential) == good


# -- API keys ----------------------------------------------------------------------------------------------------------


def test_a_key_is_known_by_its_secret_alone() -> None:
    key_id, text, kept = api_keys.make_text(b"\1" * 8, bytes(range(32)))
    key = api_keys.ApiKey(key_id=key_id, principal="User:a", secret_hash=kept, created_ms=0, expires_ms=10)
    found = api_keys.split_text(text)
    assert found is not None
    assert found[0] == key_id
    assert api_keys.is_secret_of(key, found[1])
    assert not api_keys.is_secret_of(key, found[1][:-1] + ("A" if found[1][-1] != "A" else "B"))
    assert [key.is_expired(at) for at in (9, 10, 11)] == [False, True, True]


@pytest.mark.parametrize(
    "text", ["", "psk_", "psk_00_x", "psk_" + "0" * 16 + "_" + "a" * 42, "xsk_" + "0" * 16 + "_" + "a" * 43]
)
def test_what_is_no_key_is_not_taken_for_one(text: str) -> None:
    assert api_keys.split_text(text) is None


# -- roles -------------------------------------------------------------------------------------------------------------


def test_a_worker_reads_and_writes_its_topic_and_no_other() -> None:
    index = AclIndex(expand(Role.WORKER, "User:w", AclResource.TOPIC, "orders"))
    who = Principal("w")
    for action, expected in ((AclAction.READ, True), (AclAction.WRITE, True), (AclAction.DELETE, False)):
        assert decide(index, who, "h", action, AclResource.TOPIC, "orders") is expected
    assert not decide(index, who, "h", AclAction.READ, AclResource.TOPIC, "bills")


def test_an_operator_runs_the_cluster_but_does_not_give_rights() -> None:
    index = AclIndex(expand(Role.OPERATOR, "User:o", AclResource.CLUSTER, "kafka-cluster"))
    assert decide(index, Principal("o"), "h", AclAction.ALTER_CONFIGS, AclResource.CLUSTER, "kafka-cluster")
    assert not decide(index, Principal("o"), "h", AclAction.ALTER, AclResource.CLUSTER, "kafka-cluster")


def test_an_admin_of_the_cluster_may_do_everything() -> None:
    index = AclIndex(expand(Role.ADMIN, "User:a", AclResource.CLUSTER, "kafka-cluster"))
    for resource in AclResource:
        name = "kafka-cluster" if resource is AclResource.CLUSTER else "anything"
        assert all(decide(index, Principal("a"), "h", action, resource, name) for action in AclAction)


def test_unknown_roles_and_roles_without_meaning_are_told_with_those_that_there_are() -> None:
    with pytest.raises(UnknownRole, match="reader, writer"):
        find_role("king")
    with pytest.raises(UnknownRole, match="Grant it on: topic"):
        expand(Role.WRITER, "User:a", AclResource.GROUP, "g")


# -- failures ----------------------------------------------------------------------------------------------------------


def test_the_first_failures_are_free_and_then_the_wait_doubles_up_to_its_limit() -> None:
    failures = Failures(wait_max_ms=1_000)
    waits = []
    for _ in range(FREE_TRIES + 6):
        waits.append(failures.wait_ms("a", 0))
        failures.failed("a", 0)
    assert waits[:FREE_TRIES] == [0] * FREE_TRIES
    assert waits[FREE_TRIES:] == [FIRST_WAIT_MS, 200, 400, 800, 1_000, 1_000]
    assert failures.wait_ms("b", 0) == 0
    assert failures.wait_ms("a", 100 * FORGET_MS) == 0


def test_the_number_of_names_is_bounded() -> None:
    failures = Failures(wait_max_ms=1_000, names_max=3)
    for number in range(10):
        failures.failed(str(number), 0)
    assert len(failures) == 3
