"""What the controller decides about access, and what becomes of it in the metadata."""

from __future__ import annotations

import pytest

from penstock.access import scram
from penstock.access.acls import CLUSTER_NAME, Acl, AclAction, AclFilter, AclPattern, AclPermission, AclResource
from penstock.access.api_keys import ApiKey
from penstock.access.scram import ScramMechanism
from penstock.consensus.commands import (
    AclsRemoved,
    AddAcls,
    Command,
    IssueApiKey,
    RemoveAcls,
    RemoveCredentials,
    RevokeApiKey,
    SetCredentials,
)
from penstock.consensus.controller import access
from penstock.consensus.controller.decisions import decide
from penstock.consensus.metadata import ClusterMetadata
from penstock.consensus.records import decode_records, encode_records
from penstock.errors import (
    AccessLimitReached,
    ApiKeyNotFound,
    InvalidField,
    InvalidPrincipal,
    LastAdmin,
    PenstockError,
    UserNotFound,
)

BOTH = tuple(scram.derive(mechanism, "pw", bytes(32), 4096) for mechanism in ScramMechanism)
READ = Acl(principal="User:a", action=AclAction.READ, resource=AclResource.TOPIC, name="t")
ADMIN = Acl(principal="User:a", action=AclAction.ALL, resource=AclResource.CLUSTER, name=CLUSTER_NAME)
KEY = ApiKey(key_id="0" * 16, principal="User:a", secret_hash=bytes(32), created_ms=5, scopes=(READ,))


def do(metadata: ClusterMetadata, *commands: Command) -> object:
    answer: object = None
    for command in commands:
        decision = decide(metadata, command)
        for record in decode_records(encode_records(decision.records)):
            metadata.apply(record)
        answer = decision.answer
    return answer


def test_a_snapshot_has_everything_and_the_version_never_falls() -> None:
    metadata = ClusterMetadata()
    do(metadata, SetCredentials(user="a", credentials=BOTH), AddAcls(acls=(READ, ADMIN)), IssueApiKey(key=KEY))
    version = metadata.access.version
    again = ClusterMetadata()
    for record in decode_records(encode_records(metadata.to_records())):
        again.apply(record)
    assert again.access.credentials == metadata.access.credentials
    assert list(again.access.acls) == list(metadata.access.acls)
    assert again.access.keys == {KEY.key_id: KEY}
    metadata.reset()
    assert metadata.access.version > version
    assert not metadata.access.credentials
    assert not list(metadata.access.acls)


def test_metadata_from_before_there_was_access_opens() -> None:
    old = b'[{"type":"ClusterCreated","cluster_id":"c"}]'
    metadata = ClusterMetadata()
    for record in decode_records(old):
        metadata.apply(record)
    assert metadata.access.version == 0


def test_credentials_go_by_mechanism_or_all_at_once() -> None:
    metadata = ClusterMetadata()
    do(metadata, SetCredentials(user="a", credentials=BOTH))
    do(metadata, RemoveCredentials(user="a", mechanisms=(ScramMechanism.SHA_256,)))
    assert list(metadata.access.credentials["a"]) == [ScramMechanism.SHA_512]
    with pytest.raises(UserNotFound, match="SCRAM-SHA-256"):
        do(metadata, RemoveCredentials(user="a", mechanisms=(ScramMechanism.SHA_256,)))
    do(metadata, RemoveCredentials(user="a"))
    with pytest.raises(UserNotFound, match="does not exist"):
        do(metadata, RemoveCredentials(user="a"))


def test_the_last_administrator_stays() -> None:
    metadata = ClusterMetadata()
    do(metadata, SetCredentials(user="a", credentials=BOTH), AddAcls(acls=(ADMIN,)))
    denied = Acl(
        principal="User:*",
        action=AclAction.ALTER,
        resource=AclResource.CLUSTER,
        name=CLUSTER_NAME,
        permission=AclPermission.DENY,
    )
    for command in (
        RemoveAcls(filters=(AclFilter(),)),
        RemoveCredentials(user="a"),
        AddAcls(acls=(denied,)),
    ):
        with pytest.raises(LastAdmin, match="role admin"):
            do(metadata, command)
    other = Acl(principal="User:b", action=AclAction.ALTER, resource=AclResource.CLUSTER, name=CLUSTER_NAME)
    do(
        metadata,
        AddAcls(acls=(other,)),
        RemoveCredentials(user="a"),
        RemoveAcls(filters=(AclFilter(principal="User:a"),)),
    )
    assert list(metadata.access.acls) == [other]


def test_removing_tells_what_each_filter_matched() -> None:
    metadata = ClusterMetadata()
    do(metadata, AddAcls(acls=(READ, READ)))
    assert len(metadata.access.acls) == 1
    checked = do(metadata, RemoveAcls(filters=(AclFilter(name="t"),), is_only_checked=True))
    assert checked == AclsRemoved(matches=((READ,),))
    assert len(metadata.access.acls) == 1
    assert do(metadata, RemoveAcls(filters=(AclFilter(name="u"), AclFilter(name="t")))) == AclsRemoved(
        matches=((), (READ,))
    )


@pytest.mark.parametrize(
    ("acl", "error"),
    [
        ({"principal": "alice"}, InvalidPrincipal),
        ({"principal": "Group:*"}, InvalidPrincipal),
        ({"name": ""}, InvalidField),
        ({"name": "x" * 250}, InvalidField),
        ({"host": "example.org"}, InvalidField),
        ({"resource": AclResource.CLUSTER, "name": "other"}, InvalidField),
        ({"resource": AclResource.CLUSTER, "name": CLUSTER_NAME, "pattern": AclPattern.PREFIXED}, InvalidField),
    ],
)
def test_rules_that_mean_nothing_are_refused(acl: dict[str, object], error: type[PenstockError]) -> None:
    from msgspec.structs import replace

    with pytest.raises(error):
        do(ClusterMetadata(), AddAcls(acls=(replace(READ, **acl),)))


def test_numbers_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    metadata = ClusterMetadata()
    do(metadata, SetCredentials(user="a", credentials=BOTH), AddAcls(acls=(READ,)), IssueApiKey(key=KEY))
    for name in ("USERS_MAX", "ACLS_MAX", "KEYS_MAX"):
        monkeypatch.setattr(access, name, 1)
    from msgspec.structs import replace

    for command in (
        SetCredentials(user="b", credentials=BOTH),
        AddAcls(acls=(ADMIN,)),
        IssueApiKey(key=replace(KEY, key_id="1" * 16)),
    ):
        with pytest.raises(AccessLimitReached):
            do(metadata, command)
    do(metadata, SetCredentials(user="a", credentials=BOTH), AddAcls(acls=(READ,)))


def test_keys_are_issued_once_and_revoked_once() -> None:
    metadata = ClusterMetadata()
    do(metadata, IssueApiKey(key=KEY))
    with pytest.raises(InvalidField):
        do(metadata, IssueApiKey(key=KEY))
    do(metadata, RevokeApiKey(key_id=KEY.key_id))
    with pytest.raises(ApiKeyNotFound):
        do(metadata, RevokeApiKey(key_id=KEY.key_id))
