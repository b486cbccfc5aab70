"""Work queues: any topic read with leases, acks, retries and dead letters.

The modules here are what doors and other nodes call. `core` decides without clock, socket or log; `leading` runs it on
the node that leads a partition.
"""
