"""Whom a client trusts at ``https://`` URLs, and the certificate that it shows of itself.

What is not given comes from the environment: ``PENSTOCK_CA``, ``PENSTOCK_CERTIFICATE`` and ``PENSTOCK_KEY`` name files
in PEM. The command line, the Python client, workers and Spark all decide here, so one variable serves them all.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from penstock.errors import InvalidRequest

TrustedFile = str | os.PathLike[str]


@dataclass(frozen=True, slots=True)
class Trust:
    """Files in PEM. Without ``ca`` the authorities of the system are trusted; without ``certificate`` none is shown."""

    ca: str | None = None
    certificate: str | None = None
    key: str | None = None  # by default in the file of the certificate

    @classmethod
    def of(
        cls,
        ca: TrustedFile | None = None,
        certificate: TrustedFile | None = None,
        key: TrustedFile | None = None,
        environ: Mapping[str, str] = os.environ,
    ) -> Trust:
        """What is given, or else what the environment says."""
        return cls(
            _text(ca) or environ.get("PENSTOCK_CA") or None,
            _text(certificate) or environ.get("PENSTOCK_CERTIFICATE") or None,
            _text(key) or environ.get("PENSTOCK_KEY") or None,
        )

    def context(self) -> ssl.SSLContext:
        """A context for connections; `InvalidRequest` if a file cannot be used."""
        try:
            context = ssl.create_default_context(cafile=self.ca)
        except (OSError, ssl.SSLError) as error:
            raise InvalidRequest(
                f"{self.ca} holds no certificates of authorities in PEM ({_reason(error)}): give the file of the "
                "authority that signed the nodes' certificates as `ca`, or in PENSTOCK_CA."
            ) from error
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if self.certificate is not None:
            try:
                context.load_cert_chain(self.certificate, self.key, password=_no_passphrase)
            except (OSError, ssl.SSLError) as error:
                raise InvalidRequest(
                    f"{self.certificate} and {self.key or 'the key in it'} are not a certificate and its key in PEM "
                    f"({_reason(error)})."
                ) from error
        return context


SYSTEM_TRUST: Final = Trust()


def _text(path: TrustedFile | None) -> str | None:
    return None if path is None else os.fspath(path)


def _reason(error: OSError) -> str:
    return getattr(error, "reason", None) or error.strerror or str(error)


def _no_passphrase() -> str:
    raise InvalidRequest("The private key is encrypted with a passphrase: give one without, readable by you only.")


def explain(error: OSError) -> str:
    """Why a connection failed, with what to do about it where that is about certificates."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return (
            f"the certificate of the node is not trusted ({error.verify_message}); give the file of its authority as "
            "`ca`, --ca or PENSTOCK_CA, and reach the node by a name that its certificate has"
        )
    if isinstance(error, ssl.SSLError) and error.reason in {"WRONG_VERSION_NUMBER", "HTTP_REQUEST"}:
        return "the node does not speak TLS there; give http:// instead of https://"
    return error.strerror or str(error)
