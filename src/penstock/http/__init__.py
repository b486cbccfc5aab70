"""The HTTP door: REST, health, metrics, the API's description, the status page. It translates, the broker decides."""

from penstock.http.config import HttpConfig
from penstock.http.server import HttpServer

__all__ = ["HttpConfig", "HttpServer"]
