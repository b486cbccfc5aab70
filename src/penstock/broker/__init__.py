"""The broker: topics, partitions and records as every door sees them."""
