"""The gRPC door: the services of `proto/penstock/v1`, with reflection and health, in the node's own event loop."""
