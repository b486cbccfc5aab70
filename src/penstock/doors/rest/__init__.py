"""The HTTP door: REST, health, metrics, the API's description, the status page. It translates, the broker decides."""

from penstock.doors.rest.config import HttpConfig
from penstock.doors.rest.server import HttpServer

__all__ = ["HttpConfig", "HttpServer"]
