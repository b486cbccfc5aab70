"""How long a decision on access takes: 1,000 principals, 10,000 rules. ``python -m bench.access``.

A decision that is known has to take less than 2 µs: it stands before every request.
"""

from __future__ import annotations

import time

from penstock.access.acls import Acl, AclAction, AclPattern, AclResource
from penstock.access.principal import Principal
from penstock.access.rules import AccessRules
from penstock.features.access.authorizer import Authorizer

PRINCIPALS = 1_000
RULES_EACH = 10
ROUNDS = 20
KNOWN_US_MAX = 2.0


def main() -> None:
    rules = AccessRules()
    for number in range(PRINCIPALS):
        for rule in range(RULES_EACH):
            rules.add_acl(
                Acl(
                    principal=f"User:user-{number}",
                    action=AclAction.READ,
                    resource=AclResource.TOPIC,
                    name=f"team-{number}.topic-{rule}",
                    pattern=AclPattern.PREFIXED if rule % 2 else AclPattern.LITERAL,
                )
            )
    authorizer = Authorizer(rules, is_on=True)
    asked = [(Principal(f"user-{at}"), f"team-{at}.topic-{at % RULES_EACH}") for at in range(PRINCIPALS)]
    first_us = _round_us(authorizer, asked)
    known_us = min(_round_us(authorizer, asked) for _ in range(ROUNDS))
    print(f"{len(rules.acls):,} rules: {first_us:.2f} µs for a new decision, {known_us:.2f} µs for a known one")
    assert known_us < KNOWN_US_MAX, f"a known decision takes more than {KNOWN_US_MAX} µs"


def _round_us(authorizer: Authorizer, asked: list[tuple[Principal, str]]) -> float:
    began = time.perf_counter()
    for principal, name in asked:
        assert authorizer.allows(principal, "10.0.0.1", AclAction.READ, AclResource.TOPIC, name)
    return (time.perf_counter() - began) / len(asked) * 1_000_000


if __name__ == "__main__":
    main()
