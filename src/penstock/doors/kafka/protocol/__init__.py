"""The Kafka wire protocol, sans IO: bytes in, typed messages out, and back.

`codec` turns any message described in `messages` into bytes and back, at any version; `produce` and `fetch` are the two
hot requests, written by hand on memoryviews; `headers` frames both. Nothing here knows a socket, a topic or a broker.
"""
