"""Copies of partitions on several nodes: followers pull batches from leaders, and leaders know who is in sync."""
