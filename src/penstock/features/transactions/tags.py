"""Whose a record of ``__transaction_state`` is: transactional ids and joint transactions share the topic.

Keys say by their ``type`` what they are about. Each coordinator steps over what is the other's.
"""

from __future__ import annotations

from typing import Final

import msgspec

TRANSACTION: Final = "transaction"
JOINT: Final = "joint"
JOINT_WRITER: Final = "joint-writer"


class _Tag(msgspec.Struct, frozen=True):
    type: str


_tags = msgspec.json.Decoder(_Tag)


def is_joint(key: bytes | None) -> bool:
    """Whether a record is about a joint transaction, by its key."""
    try:
        return _tags.decode(key or b"").type in {JOINT, JOINT_WRITER}
    except msgspec.MsgspecError:
        return False
