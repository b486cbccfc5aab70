"""The gRPC stubs that programs import, made from `proto/`."""
