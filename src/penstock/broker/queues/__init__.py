"""Work queues: any topic read with leases, acks, retries and dead letters.

This room is what doors and other nodes call; `core` decides without clock, socket or log; `leading` runs it on the node
that leads a partition; `letters` buries what cannot be handled; `redrives` brings it back.
"""
