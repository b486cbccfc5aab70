"""InitProducerId: an identity for idempotent producers."""

from __future__ import annotations

from penstock.errors import PenstockError
from penstock.kafka.errors import error_code
from penstock.kafka.exchange import Exchange
from penstock.kafka.handlers.table import Handler
from penstock.kafka.protocol.errors import ErrorCode
from penstock.kafka.protocol.transaction_messages import InitProducerIdRequest, InitProducerIdResponse


async def init_producer_id(exchange: Exchange, request: InitProducerIdRequest) -> InitProducerIdResponse:
    """Versions 0 to 4. From 3 on a producer may ask for a new epoch (KIP-360): it gets a new id."""
    if request.transactional_id is not None:
        return InitProducerIdResponse(
            error_code=ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, producer_id=-1, producer_epoch=-1
        )
    try:
        producer_id = await exchange.broker.allocate_producer_id()
    except PenstockError as error:
        return InitProducerIdResponse(error_code=error_code(error), producer_id=-1, producer_epoch=-1)
    return InitProducerIdResponse(error_code=ErrorCode.NONE, producer_id=producer_id, producer_epoch=0)


HANDLERS = (Handler(InitProducerIdRequest, init_producer_id),)
