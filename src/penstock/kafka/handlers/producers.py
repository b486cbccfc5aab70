"""InitProducerId: an identity for producers, idempotent or transactional."""

from __future__ import annotations

from typing import Final

from penstock.broker.coordination.messages import ProducerIdentity
from penstock.errors import PenstockError
from penstock.kafka.admission import coordinator_code
from penstock.kafka.exchange import Exchange
from penstock.kafka.handlers.table import Handler
from penstock.kafka.protocol.errors import ErrorCode
from penstock.kafka.protocol.transaction_messages import InitProducerIdRequest, InitProducerIdResponse

_FIRST_FENCED_VERSION: Final = 4
_NOBODY: Final = -1


async def init_producer_id(exchange: Exchange, request: InitProducerIdRequest) -> InitProducerIdResponse:
    """Versions 0 to 5. From 3 on a producer may say who it was and ask for a new epoch (KIP-360).

    A producer that is only idempotent gets a new id instead.
    """
    broker = exchange.broker
    expected = None
    if request.producer_id != _NOBODY:
        expected = ProducerIdentity(request.producer_id, request.producer_epoch)
    try:
        if request.transactional_id is None:
            producer = ProducerIdentity(await broker.allocate_producer_id(), 0)
        else:
            timeout_ms = request.transaction_timeout_ms
            producer = await broker.transactions.init(request.transactional_id, timeout_ms, expected)
    except PenstockError as error:
        code = coordinator_code(error, knows_fenced=exchange.version >= _FIRST_FENCED_VERSION)
        return InitProducerIdResponse(error_code=code, producer_id=-1, producer_epoch=-1)
    return InitProducerIdResponse(
        error_code=ErrorCode.NONE, producer_id=producer.producer_id, producer_epoch=producer.epoch
    )


HANDLERS = (Handler(InitProducerIdRequest, init_producer_id),)
