"""State machines beside a partition's log: every change is written to it, applied, and then answered."""
