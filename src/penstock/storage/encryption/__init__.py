"""Encryption at rest: AES-256-GCM under the `Files` port. Format and argument: docs/formats/encryption.md.

`cryptography` is imported here and nowhere else, and this package only where encryption is configured.
"""
