"""What the nodes of a cluster agree on: the metadata log and the state machine it is applied to."""
