"""Rules: what is decided, against a twin that looks at every rule, and how fast it is found."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from penstock.access.acls import (
    Acl,
    AclAction,
    AclFilter,
    AclIndex,
    AclPattern,
    AclPermission,
    AclResource,
    decide,
    decide_any,
)
from penstock.access.principal import Principal

NAMES = ["a", "ab", "abc", "b", "*"]
HOSTS = ["*", "10.0.0.1", "10.0.0.2"]
ACLS = st.builds(
    Acl,
    principal=st.sampled_from(["User:x", "User:y", "User:*"]),
    action=st.sampled_from(list(AclAction)),
    resource=st.sampled_from(list(AclResource)),
    name=st.sampled_from(NAMES),
    pattern=st.sampled_from(list(AclPattern)),
    permission=st.sampled_from(list(AclPermission)),
    host=st.sampled_from(HOSTS),
)
IMPLIED = {
    AclAction.DESCRIBE: {AclAction.READ, AclAction.WRITE, AclAction.DELETE, AclAction.ALTER},
    AclAction.DESCRIBE_CONFIGS: {AclAction.ALTER_CONFIGS},
}


def twin(acls: Sequence[Acl], who: str, host: str, action: AclAction, resource: AclResource, name: str) -> bool:
    """The same decision from the words of the rule, one rule after the other."""
    about = [
        acl
        for acl in acls
        if acl.principal in (who, "User:*")
        and acl.host in ("*", host)
        and acl.resource == resource
        and (name.startswith(acl.name) if acl.pattern == AclPattern.PREFIXED else acl.name in (name, "*"))
    ]
    if any(acl.permission == AclPermission.DENY and acl.action in (action, AclAction.ALL) for acl in about):
        return False
    enough = {action, AclAction.ALL} | IMPLIED.get(action, set())
    return any(acl.permission == AclPermission.ALLOW and acl.action in enough for acl in about)


@given(
    st.lists(ACLS, max_size=12),
    st.lists(st.integers(0, 11), max_size=6),
    st.sampled_from(["x", "y", "z"]),
    st.sampled_from(HOSTS[1:]),
    st.sampled_from(list(AclAction)),
    st.sampled_from(list(AclResource)),
    st.sampled_from(["a", "ab", "abcd", "b", "c"]),
)
def test_the_index_decides_as_a_look_at_every_rule_does(
    acls: list[Acl], gone: list[int], who: str, host: str, action: AclAction, resource: AclResource, name: str
) -> None:
    index = AclIndex(acls)
    removed = {acls[at] for at in gone if at < len(acls)}
    for acl in removed:
        index.remove(acl)
    left = [acl for acl in acls if acl not in removed]
    assert set(index) == set(left)
    expected = twin(left, f"User:{who}", host, action, resource, name)
    assert decide(index, Principal(who), host, action, resource, name) is expected
    if expected:
        assert decide_any(index, Principal(who), host, action, resource)


def test_a_super_user_may_do_everything_even_what_is_denied() -> None:
    denied = Acl(
        principal="User:root",
        action=AclAction.ALL,
        resource=AclResource.TOPIC,
        name="*",
        permission=AclPermission.DENY,
    )
    at = (Principal("root"), "h", AclAction.READ, AclResource.TOPIC, "t")
    assert not decide(AclIndex([denied]), *at)
    assert decide(AclIndex([denied]), *at, super_users=("User:root",))


def test_a_denial_of_everything_leaves_nothing_for_any_name() -> None:
    write = Acl(principal="User:x", action=AclAction.WRITE, resource=AclResource.TOPIC, name="t")
    denied = Acl(
        principal="User:x",
        action=AclAction.WRITE,
        resource=AclResource.TOPIC,
        name="t",
        pattern=AclPattern.PREFIXED,
        permission=AclPermission.DENY,
    )
    at = (Principal("x"), "h", AclAction.WRITE, AclResource.TOPIC)
    assert decide_any(AclIndex([write]), *at)
    assert not decide_any(AclIndex([write, denied]), *at)


def test_a_filter_that_matches_a_name_finds_the_rules_that_apply_to_it() -> None:
    rules = {
        kind: Acl(principal="User:x", action=AclAction.READ, resource=AclResource.TOPIC, name=name, pattern=pattern)
        for kind, name, pattern in (
            ("own", "orders", AclPattern.LITERAL),
            ("all", "*", AclPattern.LITERAL),
            ("prefix", "ord", AclPattern.PREFIXED),
            ("other", "bills", AclPattern.LITERAL),
        )
    }
    index = AclIndex(rules.values())
    assert index.matching(AclFilter(name="orders")) == [rules["own"]]
    found = index.matching(AclFilter(name="orders", is_match=True))
    assert set(found) == {rules["own"], rules["all"], rules["prefix"]}
