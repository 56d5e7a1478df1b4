"""Logins of browsers: cookies that scripts cannot read, tokens against CSRF, ends of all kinds."""

from __future__ import annotations

import contextlib
import secrets
import ssl
from pathlib import Path

import pytest

from chronik.admin import sessions
from chronik.admin.tls import client_context
from chronik.config import Settings
from chronik.metadata.commands import PutCredential, RemoveCredential
from chronik.node import Node
from chronik.security.scram import MECHANISMS, make_credential
from tests.security.test_http_rights import TOPIC, basic, prepare
from tests.tls import make_certificate
from tests.unit.admin.support import Answer, Http, with_node

CLOSED = {"authorizer": True, "super_users": "User:admin"}
RIGHT = {"user": "admin", "password": "a password"}


def browser(login: Answer) -> dict[str, str]:
    """What a page of the node sends after this login."""
    return {
        "cookie": login.headers["set-cookie"].partition(";")[0],
        "x-csrf-token": login.json["csrf_token"],
    }


def test_who_logs_in_again_and_again_ends_its_own_sessions_alone() -> None:
    held = sessions.Sessions(Settings(data_dir=Path("/data")), lambda: 0)
    most = sessions.PRINCIPAL_SESSIONS_MAX

    def log_in(principal: str) -> dict[str, str]:
        _, header = held.begin(sessions.SessionProof(principal, lambda _host: None))
        name, _, value = header.partition(";")[0].partition("=")
        return {name: value}

    other = log_in("User:ada")
    cookies = [log_in("User:mallory") for _ in range(5 * most)]
    assert held.find(other) is not None
    assert [held.find(one) is not None for one in cookies] == [False] * 4 * most + [True] * most
    assert (len(held), held.evicted) == (most + 1, 4 * most)


def test_a_session_is_opened_used_and_closed(tmp_path: Path) -> None:
    async def work(node: Node, http: Http) -> None:
        await prepare(node, http)
        assert (await http.get("/session")).status == 401
        login = await http.post("/session", RIGHT)
        cookie = login.headers["set-cookie"]
        assert {"HttpOnly", "SameSite=Strict", "Path=/"} <= set(cookie.split("; "))
        assert "Secure" not in cookie
        page = browser(login)
        assert (await http.get("/session", **page)).json["principal"] == "User:admin"
        assert (await http.get("/session", **page)).json["csrf_token"] == page["x-csrf-token"]
        only_cookie = {"cookie": page["cookie"]}
        assert (await http.get(f"/admin/topics/{TOPIC}", **only_cookie)).status == 200
        for headers in (only_cookie, {**only_cookie, "x-csrf-token": "guessed"}):
            forged = await http.post("/admin/create-topic", {"name": "t"}, **headers)
            assert (forged.status, forged.json["code"]) == (403, "csrf_token_required")
        assert (await http.post("/admin/create-topic", {"name": "t"}, **page)).status == 200
        foreign = {**page, "origin": "https://evil.example"}
        assert (await http.post("/admin/create-topic", {"name": "u"}, **foreign)).status == 403
        assert (await http.post("/session", RIGHT, origin="https://evil.example")).status == 403
        assert (await http.call("DELETE", "/session", headers=only_cookie)).status == 403
        over = await http.call("DELETE", "/session", headers=page)
        assert "Max-Age=0" in over.headers["set-cookie"]
        assert (await http.get("/session", **page)).status == 401

    with_node(tmp_path, work, **CLOSED)


def test_a_session_ends_with_its_password_its_key_and_its_time(tmp_path: Path) -> None:
    async def work(node: Node, http: Http) -> None:
        await prepare(node, http)
        submit = node.parts.metadata.submit
        scram = MECHANISMS["SCRAM-SHA-256"]
        for command in (
            PutCredential(
                user="ada", credential=make_credential(scram, "new", secrets.token_bytes(16), 4096)
            ),
            RemoveCredential(user="mallory", mechanism=scram.name),
        ):
            page = browser(await http.post("/session", {"user": command.user, "password": "a password"}))
            assert (await http.get("/session", **page)).status == 200
            await submit(command)
            assert (await http.get("/session", **page)).status == 401
        made = await http.post("/admin/keys", {"name": "mine"}, **basic("admin"))
        page = browser(await http.post("/session", {"key": made.json["key"]}))
        assert (await http.get("/session", **page)).json["principal"] == "Key:mine"
        await http.call("DELETE", "/admin/keys/mine", headers=basic("admin"))
        assert (await http.get("/session", **page)).status == 401
        page = browser(await http.post("/session", RIGHT))
        held = node._http._context.callers.sessions  # type: ignore[union-attr]
        later = held._now_ms() + node.settings.http_session_ms
        held._now_ms = lambda: later
        assert (await http.get("/session", **page)).status == 401
        assert len(held) == 0

    with_node(tmp_path, work, **CLOSED)


def test_there_are_so_many_sessions_and_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "SESSIONS_MAX", 2)

    async def work(node: Node, http: Http) -> None:
        await prepare(node, http)
        pages = [browser(await http.post("/session", RIGHT)) for _ in range(3)]
        assert [(await http.get("/session", **page)).status for page in pages] == [401, 200, 200]
        figures = (await http.get("/metrics")).body
        assert b"chronik_http_sessions 2.0" in figures
        assert b"chronik_http_sessions_evicted_total 1.0" in figures
        wrong = await http.post("/session", {**RIGHT, "password": "guess"})
        nobody = await http.post("/session", {"user": "nobody", "password": "a password"})
        assert wrong.status == nobody.status == 401
        assert wrong.body == nobody.body
        assert "set-cookie" not in wrong.headers

    with_node(tmp_path, work, **CLOSED)


def test_under_tls_the_cookie_is_for_tls_alone(tmp_path: Path) -> None:
    cert, key = make_certificate(tmp_path)

    async def work(node: Node, http: Http) -> None:
        tls: ssl.SSLContext = client_context(cert)
        secure = Http(node.http_port, tls)
        submit = node.parts.metadata.submit
        scram = MECHANISMS["SCRAM-SHA-256"]
        credential = make_credential(scram, "a password", secrets.token_bytes(16), 4096)
        await submit(PutCredential(user="admin", credential=credential))
        cookie = (await secure.post("/session", RIGHT)).headers["set-cookie"]
        assert cookie.startswith("__Host-")
        assert cookie.endswith("; Secure")

    with_node(tmp_path / "data", work, **CLOSED, http_tls_cert=cert, http_tls_key=key)


def test_a_certificate_says_who_calls(tmp_path: Path) -> None:
    cert, key = make_certificate(tmp_path)

    async def work(node: Node, http: Http) -> None:
        showing = client_context(cert)
        showing.load_cert_chain(cert, key)
        by_certificate = Http(node.http_port, showing)
        assert (await by_certificate.get("/session")).json["principal"] == "User:node"
        assert (await by_certificate.get("/admin/raft-status")).status == 200
        assert (await Http(node.http_port, client_context(cert)).get("/session")).status == 401
        other = tmp_path / "other"
        other.mkdir()
        stranger = client_context(cert)
        stranger.load_cert_chain(*make_certificate(other))
        with contextlib.suppress(ssl.SSLError, ConnectionError):
            assert not await Http(node.http_port, stranger).raw(b"GET /health HTTP/1.1\r\n\r\n")

    with_node(
        tmp_path / "data",
        work,
        authorizer=True,
        super_users="User:node",
        ssl_principal_mapping_rules="RULE:CN=(.*)/$1/",
        http_tls_cert=cert,
        http_tls_key=key,
        http_tls_client_ca=cert,
    )
