"""Partitions on this node: replicas, their leaders and followers, and those that other nodes lead."""
