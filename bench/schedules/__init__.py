"""`./dev bench schedules`: messages for later, a million of them and ten thousand a second, next to Redis.

Each server gets the same: messages of 100 bytes for later in batches of 500, until so many are pending; how much memory
that takes; how long it is after `kill -9` until it answers again; and how late messages come if so many are due each
second. Redis has no schedules: its users put messages into a sorted set and poll that with a script, and so does this.
"""
