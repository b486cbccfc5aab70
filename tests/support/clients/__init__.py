"""Python's Kafka clients behind one contract."""
