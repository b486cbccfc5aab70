"""The Python client: publish, consume, work queues, transactions and workers, over HTTP to any node of a cluster."""
