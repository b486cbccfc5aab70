"""The queue where it is led: its shard over the companion log, what it reads, delivers, reports and throws away."""
