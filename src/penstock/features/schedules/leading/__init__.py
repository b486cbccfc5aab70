"""Schedules at the leader of their shard: the log, the time, the way into topics."""
