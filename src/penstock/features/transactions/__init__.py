"""Transactions: producers' writes to many partitions that become visible together or not at all."""
