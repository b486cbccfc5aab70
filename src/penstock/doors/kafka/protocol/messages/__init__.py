"""The messages of every API, one description for all versions of each; `schema` says how to read them.

A module holds the requests and the responses of one domain, next to each other, as `handlers` does on the other side.
`MESSAGES` has the request and the response of every API by its key: a class is named after its API.
"""

from __future__ import annotations

from penstock.doors.kafka.protocol.apis import APIS
from penstock.doors.kafka.protocol.messages import (
    cluster,
    configs,
    groups,
    offsets,
    quotas,
    records,
    security,
    topics,
    transactions,
)
from penstock.doors.kafka.protocol.schema import ApiMessage

_CLASSES: dict[str, type[ApiMessage]] = {
    name: cls
    for module in (cluster, configs, groups, offsets, quotas, records, security, topics, transactions)
    for name, cls in vars(module).items()
    if isinstance(cls, type) and hasattr(cls, "api")
}

MESSAGES: dict[int, tuple[type[ApiMessage], type[ApiMessage]]] = {
    key: (_CLASSES[f"{api.name}Request"], _CLASSES[f"{api.name}Response"]) for key, api in APIS.items()
}
