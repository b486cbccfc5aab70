"""The authority's certificates are what TLS libraries take: checked by a real handshake in memory."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from penstock.errors import InvalidRequest
from penstock.secure.authority import Authority, KeyPair, expiry_of, make_authority

NOW = datetime.now(UTC)


def kept(directory: Path, name: str, pair: KeyPair) -> tuple[str, str]:
    certificate, key = directory / f"{name}.pem", directory / f"{name}.key"
    certificate.write_bytes(pair.certificate)
    key.write_bytes(pair.key)
    return str(certificate), str(key)


def shake_hands(server: ssl.SSLContext, client: ssl.SSLContext, host: str) -> tuple[ssl.SSLObject, ssl.SSLObject]:
    """Both ends of a handshake that went well; `ssl.SSLError` if it did not."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = (
        client.wrap_bio(to_client, to_server, server_hostname=host),
        server.wrap_bio(to_server, to_client, server_side=True),
    )
    waiting = list(ends)
    for _ in range(10):
        for end in tuple(waiting):
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
            waiting.remove(end)
        if not waiting:
            return ends
    raise AssertionError("the handshake does not end")


def contexts(directory: Path, server: KeyPair, client: KeyPair, ca: KeyPair) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    ca_file, _ = kept(directory, "ca", ca)
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(*kept(directory, "server", server))
    serving.load_verify_locations(ca_file)
    serving.verify_mode = ssl.CERT_REQUIRED
    calling = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    calling.load_verify_locations(ca_file)
    calling.load_cert_chain(*kept(directory, "client", client))
    return serving, calling


def test_a_client_and_a_node_recognise_each_other(tmp_path: Path) -> None:
    ca = make_authority(NOW)
    node = Authority(ca).issue_node(3, ["localhost", "127.0.0.1", "::1"], NOW)
    admin = Authority(ca).issue_client("admin", NOW)
    for host in ("localhost", "127.0.0.1", "::1", "node-3.penstock"):
        _, server = shake_hands(*contexts(tmp_path, node, admin, ca), host)
        peer = server.getpeercert()
        assert peer is not None
        assert (("commonName", "admin"),) in peer["subject"]


def test_a_node_is_not_taken_for_another_host_or_node(tmp_path: Path) -> None:
    ca = make_authority(NOW)
    node = Authority(ca).issue_node(3, ["localhost"], NOW)
    admin = Authority(ca).issue_client("admin", NOW)
    for host in ("example.org", "node-4.penstock"):
        with pytest.raises(ssl.SSLError, match="mismatch"):
            shake_hands(*contexts(tmp_path, node, admin, ca), host)


def test_a_clients_certificate_serves_nothing(tmp_path: Path) -> None:
    ca = make_authority(NOW)
    admin = Authority(ca).issue_client("node-3.penstock", NOW)
    with pytest.raises(ssl.SSLError):
        shake_hands(*contexts(tmp_path, admin, admin, ca), "node-3.penstock")


def test_a_certificate_of_another_authority_is_refused(tmp_path: Path) -> None:
    ca, other = make_authority(NOW), make_authority(NOW)
    node = Authority(ca).issue_node(1, ["localhost"], NOW)
    stranger = Authority(other).issue_client("admin", NOW)
    with pytest.raises(ssl.SSLError):
        shake_hands(*contexts(tmp_path, node, stranger, ca), "localhost")


def test_an_expired_certificate_is_refused(tmp_path: Path) -> None:
    ca = make_authority(NOW)
    node = Authority(ca).issue_node(1, ["localhost"], NOW)
    late = Authority(ca).issue_client("admin", NOW - timedelta(days=400))
    assert expiry_of(late.certificate) < NOW < expiry_of(node.certificate)
    with pytest.raises(ssl.SSLError, match="expired"):
        shake_hands(*contexts(tmp_path, node, late, ca), "localhost")


def test_a_key_that_is_not_the_authoritys_is_told() -> None:
    with pytest.raises(InvalidRequest, match="does not belong"):
        Authority(KeyPair(make_authority(NOW).certificate, make_authority(NOW).key))
    with pytest.raises(InvalidRequest, match="cannot be read"):
        Authority(KeyPair(b"no", b"no"))


@pytest.mark.parametrize("name", ["", "x" * 65])
def test_names_that_do_not_fit_are_told(name: str) -> None:
    with pytest.raises(InvalidRequest, match="1 to 64"):
        Authority(make_authority(NOW)).issue_client(name, NOW)


def test_a_key_is_in_no_repr() -> None:
    pair = make_authority(NOW)
    assert "PRIVATE" not in repr(pair)
