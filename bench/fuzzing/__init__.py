"""Fuzzing: parts that each throw bad input at one thing, in batches that a seed repeats exactly."""
