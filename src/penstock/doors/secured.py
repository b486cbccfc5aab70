"""What the doors of HTTP know of a connection with TLS, as ASGI tells it to applications."""

from __future__ import annotations

import asyncio
from typing import Any

from penstock.network.certificates import PeerCertificate


def tls_extension(transport: asyncio.BaseTransport) -> dict[str, Any] | None:
    """What ASGI's TLS extension tells of a connection; None without TLS.

    ``client_cert_name`` is the subject of the client's certificate, as in CN=alice,O=Example, or None.
    """
    secured = transport.get_extra_info("ssl_object")
    if secured is None:
        return None
    certificate = PeerCertificate.of(secured.getpeercert())
    return {"client_cert_name": None if certificate is None else certificate.subject}
