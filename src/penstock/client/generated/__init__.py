"""Made by `./dev sync-client`; not to be edited."""
