"""Dead letters: what they carry, how they are written exactly once, and when a flood of them pauses a group."""
