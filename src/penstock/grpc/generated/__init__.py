"""Made from `proto/` by `./dev proto`; not to be edited."""
