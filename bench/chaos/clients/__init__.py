"""The clients at work while faults happen, each a process of its own with a diary of its own.

    python -m bench.chaos.clients ROLE NAME INCARNATION BOOTSTRAP DIARY

SIGTERM asks a client to finish: producers wait for their answers, readers read to the end. A client that cannot go on
(a fatal error, a transaction that hangs) ends, and whoever runs it starts its next incarnation.
"""
