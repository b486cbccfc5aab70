"""One message there and back with any of the Python clients, over TLS with a login: CLIENT LOGIN-FILE TOPIC TEXT.

It prints what it read from the beginning of the topic up to the text. What the client says to a refusal goes to
standard error.
"""

from __future__ import annotations

import asyncio
import io
import logging
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
from bench.compat.logins import CERTIFICATE, NONE, TOKEN, Login

PATIENCE_S = 20.0


def confluent(login: Login, topic: str, text: str) -> None:
    from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

    problems: list[Any] = []
    settings: dict[str, Any] = {**login.librdkafka(), "error_cb": problems.append, "log_level": 0}
    if login.how == TOKEN:
        settings["oauth_cb"] = lambda _: (login.token, time.time() + 3600)
    producer = Producer({**settings, "message.timeout.ms": 10_000})
    producer.produce(topic, text, partition=0, on_delivery=lambda error, _: error and problems.append(error))
    producer.flush(PATIENCE_S)
    if problems:
        raise KafkaException("; ".join(f"{problem.name()}: {problem.str()}" for problem in problems))
    consumer = Consumer({**settings, "group.id": "login"})
    consumer.assign([TopicPartition(topic, 0, 0)])
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        message = consumer.poll(1.0)
        if message is not None and not message.error() and said(message.value(), text):
            consumer.close()
            return
    raise TimeoutError(f"it was not read: {problems}")


def said(value: bytes | None, text: str) -> bool:
    """Print a value; whether it is the one that was waited for."""
    found = (value or b"").decode()
    print(found)
    return found == text


def python_settings(login: Login) -> dict[str, Any]:
    settings: dict[str, Any] = {"bootstrap_servers": login.bootstrap, "security_protocol": login.protocol}
    if login.how not in (CERTIFICATE, NONE):
        settings["sasl_mechanism"] = login.how
        if login.how != TOKEN:
            settings |= {"sasl_plain_username": login.user, "sasl_plain_password": login.password}
    return settings


def kafka_python(login: Login, topic: str, text: str) -> None:
    from kafka import KafkaConsumer, KafkaProducer, TopicPartition
    from kafka.net.sasl.oauth import AbstractTokenProvider

    class Tokens(AbstractTokenProvider):  # type: ignore[misc]
        def token(self) -> str:
            return login.token

    settings = {**python_settings(login), "ssl_cafile": login.ca}
    if login.how == CERTIFICATE:
        settings |= {"ssl_certfile": login.certificate, "ssl_keyfile": login.key}
    if login.how == TOKEN:
        settings["sasl_oauth_token_provider"] = Tokens()
    producer = KafkaProducer(**settings, max_block_ms=10_000, bootstrap_timeout_ms=10_000)
    try:
        producer.send(topic, text.encode(), partition=0).get(PATIENCE_S)
    finally:
        producer.close(timeout=1)
    consumer = KafkaConsumer(**settings, consumer_timeout_ms=int(PATIENCE_S * 1000))
    consumer.assign([TopicPartition(topic, 0)])
    consumer.seek_to_beginning()
    for message in consumer:
        if said(message.value, text):
            consumer.close()
            return
    raise TimeoutError("it was not read")


def aiokafka(login: Login, topic: str, text: str) -> None:
    from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
    from aiokafka.abc import AbstractTokenProvider
    from aiokafka.helpers import create_ssl_context

    class Tokens(AbstractTokenProvider):  # type: ignore[misc]
        async def token(self) -> str:
            return login.token

    pair = {"certfile": login.certificate, "keyfile": login.key} if login.how == CERTIFICATE else {}
    settings = {**python_settings(login), "ssl_context": create_ssl_context(cafile=login.ca, **pair)}
    if login.how == TOKEN:
        settings["sasl_oauth_token_provider"] = Tokens()

    async def run() -> None:
        producer = AIOKafkaProducer(**settings, request_timeout_ms=10_000)
        try:
            await producer.start()
            await producer.send_and_wait(topic, text.encode(), partition=0)
        finally:
            await producer.stop()
        consumer = AIOKafkaConsumer(**settings)
        try:
            await consumer.start()
            place = TopicPartition(topic, 0)
            consumer.assign([place])
            await consumer.seek_to_beginning(place)
            while not said((await consumer.getone()).value, text):
                pass
        finally:
            await consumer.stop()

    asyncio.run(asyncio.wait_for(run(), 2 * PATIENCE_S))


CLIENTS = {"confluent-kafka": confluent, "kafka-python": kafka_python, "aiokafka": aiokafka}


def main(client: str, path: str, topic: str, text: str) -> int:
    login = msgspec.json.decode(Path(path).read_bytes(), type=Login)
    told = io.StringIO()
    logging.basicConfig(level=logging.WARNING, stream=told)
    try:
        CLIENTS[client](login, topic, text)
    except Exception as error:  # whatever a client calls it: the scenario knows what it should say
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        # The pure Python clients raise that they reached no broker, and name the reason in their logs.
        if "SaslAuthenticationFailed" in told.getvalue():
            print("SaslAuthenticationFailed", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
