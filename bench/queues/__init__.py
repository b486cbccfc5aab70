"""`./dev bench queues`: Penstock's queues next to Redis Streams, NATS JetStream and RabbitMQ, in one run.

The peers come from Debian; each is spoken to through its best Python client, one connection, by the same two loops:
publish with confirmation, and receive with acknowledgement, in batches and one by one. Clients for asyncio run on
uvloop, all of them. Further rows are Penstock's
alone: what is in flight and in memory, a large backlog, and how exactly leases end.
"""
