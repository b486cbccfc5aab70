"""What the nodes of a cluster agree on, and how: the metadata log, its state machine, Raft and the controller."""
