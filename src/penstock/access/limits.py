"""How much there may be of what decides on access. All of it is in memory on every node, and in each snapshot."""

from __future__ import annotations

from typing import Final

ACLS_MAX: Final = 100_000  # about 40 MB; a rule with a prefix stands for many
USERS_MAX: Final = 100_000
KEYS_MAX: Final = 100_000
ACLS_IN_REQUEST_MAX: Final = 1_000  # one record of the metadata log holds them
