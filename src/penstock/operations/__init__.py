"""Serves the operations of `penstock.api`, between the doors, which speak protocols, and the features, which decide.

Each module serves one resource. A function takes the services of its node, a request that its door has checked, and the
caller; it returns the answer or raises one of our errors. Nothing here knows of HTTP, gRPC or any other protocol.
"""
