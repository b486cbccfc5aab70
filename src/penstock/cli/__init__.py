"""The command line. Reference: docs/reference/cli.md."""
