"""Where a client's credentials come from, and where they never go."""

from __future__ import annotations

import base64
import os
from pathlib import Path

import pytest

from penstock.client.login import Login
from penstock.errors import InvalidRequest

NOTHING: dict[str, str] = {}


def test_without_credentials_there_is_no_header() -> None:
    assert Login.of(environ=NOTHING).header() is None
    assert not Login.of(environ=NOTHING)


def test_a_token_a_file_and_a_password_become_headers(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("psk_1_abc\n")
    assert Login.of("psk_1_abc", environ=NOTHING).header() == b"Bearer psk_1_abc"
    assert Login.of(token_file=path, environ=NOTHING).header() == b"Bearer psk_1_abc"
    basic = Login.of(user="alice", password="pass:wörd", environ=NOTHING).header()
    assert basic == b"Basic " + base64.b64encode("alice:pass:wörd".encode())


def test_the_environment_counts_only_where_nothing_is_given(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_text("from-file\n")
    assert Login.of(environ={"PENSTOCK_TOKEN": "held"}).header() == b"Bearer held"
    assert (
        Login.of(environ={"PENSTOCK_TOKEN_FILE": str(path), "PENSTOCK_TOKEN": "held"}).header() == b"Bearer from-file"
    )
    assert Login.of("given", environ={"PENSTOCK_TOKEN": "held"}).header() == b"Bearer given"
    environ = {"PENSTOCK_USER": "bob", "PENSTOCK_PASSWORD_FILE": str(path)}
    assert Login.of(environ=environ).header() == b"Basic " + base64.b64encode(b"bob:from-file")


def test_a_token_that_is_renewed_in_its_file_is_used(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("first")
    login = Login.of(token_file=path, environ=NOTHING)
    assert login.header() == b"Bearer first"
    renewed = tmp_path / "renewed"
    renewed.write_text("other")
    os.replace(renewed, path)
    assert login.header() == b"Bearer other"


@pytest.mark.parametrize("token", ["two words", "line\nbreak", "bell\x07", "ümlaut", "x" * 20_000])
def test_what_is_no_token_is_told_without_showing_it(token: str, tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text(token)
    for login in (lambda: Login.of(token, environ=NOTHING), lambda: Login.of(token_file=path, environ=NOTHING)):
        with pytest.raises(InvalidRequest) as caught:
            login()
        assert token not in caught.value.message


def test_contradictions_are_told(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="one of"):
        Login.of("a", user="b", password="c", environ=NOTHING)
    with pytest.raises(InvalidRequest, match="both"):
        Login.of(user="b", environ=NOTHING)
    with pytest.raises(InvalidRequest, match="colon"):
        Login.of(user="a:b", password="c", environ=NOTHING)
    with pytest.raises(InvalidRequest, match="cannot be read"):
        Login.of(token_file=tmp_path / "none", environ=NOTHING)
    with pytest.raises(InvalidRequest, match="PENSTOCK_PASSWORD_FILE"):
        Login.of(environ={"PENSTOCK_USER": "bob"})


def test_credentials_leave_the_machine_only_through_tls() -> None:
    login = Login.of("key", environ=NOTHING)
    for host in ("127.0.0.1", "::1", "localhost"):
        login.check_address(host, is_tls=False)
    login.check_address("broker.example", is_tls=True)
    for host in ("broker.example", "10.0.0.1"):
        with pytest.raises(InvalidRequest, match="https://"):
            login.check_address(host, is_tls=False)
    Login.of(environ=NOTHING).check_address("broker.example", is_tls=False)


def test_nothing_shows_a_credential() -> None:
    assert "key" not in repr(Login.of("key", environ=NOTHING))
