"""Settings: what can be set, where values come from, and what is wrong with them.

Defaults < ``penstock.yaml`` (with ``${ENV:default}``) < ``PENSTOCK_*`` < flags. They are read once, at the composition
root; every layer below gets its own frozen config made from them. Reference: docs/reference/configuration.md.
"""

from penstock.config.kinds import Address, format_bytes, format_duration
from penstock.config.loading import Loaded, SettingsError, load
from penstock.config.settings import (
    SETTINGS,
    BrokerSettings,
    DeliveryDefaults,
    GroupSettings,
    LoggingSettings,
    MetricsSettings,
    Settings,
    StorageSettings,
    TopicDefaults,
)

__all__ = [
    "SETTINGS",
    "Address",
    "BrokerSettings",
    "DeliveryDefaults",
    "GroupSettings",
    "Loaded",
    "LoggingSettings",
    "MetricsSettings",
    "Settings",
    "SettingsError",
    "StorageSettings",
    "TopicDefaults",
    "format_bytes",
    "format_duration",
    "load",
]
