"""Work queues: any topic read with leases, acks, retries and dead letters. Cores only: no clock, no socket, no log."""
