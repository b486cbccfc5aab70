"""From a frame to the handler of its API, and from the handler's answer back to a frame.

The table of handlers is also what ApiVersions advertises: an API is offered exactly when something here answers it.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from penstock.broker.broker import Broker
from penstock.doors.kafka.audited import audited
from penstock.doors.kafka.connection import Answer, Connection
from penstock.doors.kafka.fetch import FetchHandler
from penstock.doors.kafka.handler import CoordinatorRequest, RequestContext
from penstock.doors.kafka.handlers import HANDLERS
from penstock.doors.kafka.handlers.cluster import api_versions
from penstock.doors.kafka.limits import ELEMENTS_MAX, check_size, without_repeats
from penstock.doors.kafka.login import Gate
from penstock.doors.kafka.produce import ProduceHandler
from penstock.doors.kafka.protocol import apis
from penstock.doors.kafka.protocol.codec import decode
from penstock.doors.kafka.protocol.errors import ErrorCode, ProtocolError
from penstock.doors.kafka.protocol.headers import RequestHeader, encode_response, read_request_header
from penstock.doors.kafka.protocol.schema import Api, ApiMessage
from penstock.doors.kafka.rights import Complete, judge
from penstock.doors.kafka.throttle import Throttle, with_throttle
from penstock.errors import PenstockError
from penstock.machines.messages import Rejected

log = logging.getLogger(__name__)


class KafkaDispatcher:
    """Every API this door answers."""

    def __init__(self, broker: Broker, on_closed: Callable[[Connection], None]) -> None:
        self._broker = broker
        self._quotas = broker.quotas
        self._on_closed = on_closed
        self._produce = ProduceHandler(broker)
        self._fetch = FetchHandler(broker)
        self._tasks: set[asyncio.Task[None]] = set()
        offered: list[Api] = [apis.PRODUCE, apis.FETCH, apis.API_VERSIONS]
        offered += [handler.request.api for handler in HANDLERS.values()]
        self._offered = {api.key: api for api in sorted(offered, key=lambda api: api.key)}
        self._gate = Gate(broker, self._answer_any_versions)

    def welcome(self, connection: Connection) -> None:
        self._gate.welcome(connection)

    def on_closed(self, connection: Connection) -> None:
        self._gate.on_closed(connection)
        self._on_closed(connection)

    def dispatch(self, connection: Connection, frame: memoryview) -> None:
        # First of all, before any shortcut: nothing is served to a client that has not logged in.
        if not connection.is_admitted and not self._gate.admits(connection, frame):
            return
        if self._quotas.is_on:
            self._dispatch_measured(connection, frame)
        else:
            self._dispatch(connection, frame)

    def _dispatch_measured(self, connection: Connection, frame: memoryview) -> None:
        """Hold the client to its quotas, by this request too."""
        header = read_request_header(frame)
        throttle = connection.throttle
        if throttle is None:
            throttle = connection.throttle = Throttle(connection.pause, self._quotas, self._broker.clock)
        throttle.identify(connection.caller.principal.name, header.client_id or "")
        throttle.on_request(header.api_key, len(frame))
        began = self._broker.clock.monotonic()
        self._dispatch(connection, frame)
        throttle.on_worked(self._broker.clock.monotonic() - began)

    def _dispatch(self, connection: Connection, frame: memoryview) -> None:
        if not connection.throttle_ms and self._produce.handle_repeated(connection, frame):
            return
        header = read_request_header(frame)
        check_size(header.api_key, len(frame))
        api = self._offered.get(header.api_key)
        if api is None or not api.supports(header.api_version):
            self._refuse(connection, header, api)
        elif header.api_key == apis.PRODUCE.key:
            self._produce.handle(connection, header, frame)
        elif header.api_key == apis.FETCH.key:
            self._fetch.handle(connection, header, frame)
        elif header.api_key == apis.API_VERSIONS.key:
            self._answer_versions(connection, header, header.api_version, ErrorCode.NONE)
        elif header.api_key == apis.SASL_HANDSHAKE.key and self._gate.takes_again(connection):
            self._gate.admits(connection, frame)
        else:
            self._handle(connection, header, frame)

    def _refuse(self, connection: Connection, header: RequestHeader, api: Api | None) -> None:
        if api is apis.API_VERSIONS:
            # The client is newer than we are: answer in the oldest format, which it understands too (KIP-511).
            self._answer_versions(connection, header, 0, ErrorCode.UNSUPPORTED_VERSION)
            return
        name = f"API {header.api_key}" if api is None else api.name
        raise ProtocolError(f"{name} version {header.api_version} is not offered here (client {header.client_id!r}).")

    def _answer_any_versions(self, connection: Connection, header: RequestHeader) -> None:
        if apis.API_VERSIONS.supports(header.api_version):
            self._answer_versions(connection, header, header.api_version, ErrorCode.NONE)
        else:
            self._refuse(connection, header, apis.API_VERSIONS)

    def _answer_versions(self, connection: Connection, header: RequestHeader, version: int, error: ErrorCode) -> None:
        response = api_versions(self._offered.values(), error)
        answer = connection.expect_answer(is_barrier=True)
        answer.complete([encode_response(response, version, header.correlation_id)])

    def _handle(self, connection: Connection, header: RequestHeader, frame: memoryview) -> None:
        handler = HANDLERS[header.api_key]
        request, _ = decode(handler.request, header.api_version, frame, header.body_position, elements_max=ELEMENTS_MAX)
        request = without_repeats(handler.request.api, request)
        if connection.throttle is not None:
            connection.throttle.on_change(request)
        caller = connection.caller
        complete: Complete | None = None
        refusal = None
        if caller.is_limited:
            request, refusal, complete = judge(caller, handler.request.api, request)
            complete = audited(caller, request, complete)
        context = RequestContext(
            self._broker, header.api_version, header.client_id, connection.local_host, connection.peer_host, caller
        )
        answer = connection.expect_answer(is_barrier=True)
        outcome = handler.function(context, request) if refusal is None else refusal
        if isinstance(outcome, CoordinatorRequest):
            self._ask(connection, header, answer, outcome, complete)
        elif inspect.isawaitable(outcome):
            task = asyncio.ensure_future(self._finish(connection, header, answer, outcome, complete))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        else:
            response = outcome if complete is None else complete(outcome)
            answer.complete([_encode(connection, header, response)])

    def _ask(
        self,
        connection: Connection,
        header: RequestHeader,
        answer: Answer,
        question: CoordinatorRequest,
        complete: Complete | None,
    ) -> None:
        respond = question.respond
        if complete is not None:
            respond = partial(_completed, respond, complete)
        reply = partial(self._respond, connection, header, answer, respond)
        try:
            question.coordinator.shard(question.name).ask(question.name, question.request, reply)
        except PenstockError as error:
            reply(Rejected(error))

    def _respond(
        self,
        connection: Connection,
        header: RequestHeader,
        answer: Answer,
        respond: Callable[[Any], ApiMessage],
        what: object,
    ) -> None:
        """Runs inside the coordinator, so a failure here must not reach it."""
        if connection.is_closed:
            return
        try:
            answer.complete([_encode(connection, header, respond(what))])
        except Exception:
            log.exception("A handler failed; closing the connection of %s.", connection.peer)
            connection.close()

    async def _finish(
        self,
        connection: Connection,
        header: RequestHeader,
        answer: Answer,
        outcome: Awaitable[ApiMessage],
        complete: Complete | None,
    ) -> None:
        try:
            response = await outcome
            if complete is not None:
                response = complete(response)
        except PenstockError as error:
            connection.close(f"request {header.api_key} failed: {error.message}")
            return
        except Exception:
            log.exception("A handler failed; closing the connection of %s.", connection.peer)
            connection.close()
            return
        if not connection.is_closed:
            answer.complete([_encode(connection, header, response)])


def _encode(connection: Connection, header: RequestHeader, response: ApiMessage) -> bytearray:
    response = with_throttle(response, connection.throttle_ms)
    return encode_response(response, header.api_version, header.correlation_id)


def _completed(respond: Callable[[Any], ApiMessage], complete: Complete, what: object) -> ApiMessage:
    response: ApiMessage = complete(respond(what))
    return response
