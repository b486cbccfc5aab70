"""Work queues: any topic read with leases, acks, retries and dead letters. Cores only: no clock, socket or log in here."""
