"""Settings: what can be set (`settings`), where values come from (`loading`), how they are shown (`rendering`).

Defaults < ``penstock.yaml`` (with ``${ENV:default}``) < ``PENSTOCK_*`` < flags. They are read once, at the composition
root, and each layer gets its section of them. Reference: docs/reference/configuration.md.
"""
