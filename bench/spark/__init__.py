"""Spark on Penstock's source next to Spark's own Kafka connector: one topic, one machine, one run.

Both read the same topic of the same node, to a sink that throws rows away. What is measured is the steady state: the
first micro-batches are left out, because the JVM is still warming up.
"""
