"""``./dev compat``: the clients of other languages, and Spark's Kafka connector, against a real node.

A *client* (``clients/``) is a library in its language, driven through small programs of its own (``programs/``). A
*scenario* is something that a client does with a broker, and what has to be true afterwards: ``codecs``, ``groups``,
``transactions`` and ``connector``. Everything is installed by the registries' ordinary tools, into ``.cache``. Run with
``--target kafka``, the same scenarios meet Apache Kafka: that tells a fault of the broker from one of the scenario.
"""
