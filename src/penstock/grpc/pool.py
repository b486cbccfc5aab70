"""The definitions as the generated code has them."""

from __future__ import annotations

import pkgutil
from importlib import import_module

from google.protobuf import descriptor_pool
from google.protobuf.descriptor_pool import DescriptorPool

import penstock.grpc.generated as generated


def generated_pool() -> DescriptorPool:
    """The library's own pool, with all of our definitions in it."""
    for found in pkgutil.iter_modules(generated.__path__):
        if found.name.endswith("_pb2"):
            import_module(f"{generated.__name__}.{found.name}")
    return descriptor_pool.Default()
