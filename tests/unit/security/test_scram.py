"""SCRAM: the RFC's own example, both sides against each other, and what must not pass."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chronik.security import plain
from chronik.security.exchange import AuthenticationFailed
from chronik.security.scram import (
    MECHANISMS,
    Credential,
    ScramClient,
    ScramServer,
    decoy_credential,
    make_credential,
    password_fits,
)
from chronik.security.tokens import token_credential, token_secret

SHA256, SHA512 = MECHANISMS["SCRAM-SHA-256"], MECHANISMS["SCRAM-SHA-512"]
SALT = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
CREDENTIAL = make_credential(SHA256, "pencil", SALT, 4096)
FAST = make_credential(SHA256, "pencil", SALT, 4096)


def test_the_example_of_rfc_7677() -> None:
    server = ScramServer(SHA256, "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0")
    client = ScramClient(SHA256, "user", "pencil", "rOprNGfwEbeRWgbNEkqO")
    assert client.first() == b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
    first = server.first(client.first())
    assert (first.user, first.by_token) == ("user", False)
    challenge = server.challenge(CREDENTIAL)
    assert challenge == (
        b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    )
    final = client.final(challenge)
    assert final.endswith(b",p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=")
    answer = server.final(final)
    assert answer == b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
    client.check(answer)


def exchange(client: ScramClient, credential: Credential, nonce: str = "server") -> str:
    server = ScramServer(MECHANISMS[credential.mechanism], nonce)
    first = server.first(client.first())
    client.check(server.final(client.final(server.challenge(credential))))
    return first.user


@pytest.mark.parametrize("mechanism", MECHANISMS.values(), ids=lambda one: one.name)
@pytest.mark.parametrize("user", ["alice", "a=b,c", "жук", "=2C"])
def test_both_sides_understand_each_other(mechanism: object, user: str) -> None:
    credential = make_credential(mechanism, "gehéim", b"salt", 4096)  # type: ignore[arg-type]
    assert exchange(ScramClient(mechanism, user, "gehéim", "c"), credential) == user  # type: ignore[arg-type]
    with pytest.raises(AuthenticationFailed):
        exchange(ScramClient(mechanism, user, "geheim", "c"), credential)  # type: ignore[arg-type]


def test_a_recorded_proof_does_not_serve_twice() -> None:
    client = ScramClient(SHA256, "user", "pencil", "c")
    server = ScramServer(SHA256, "one")
    server.first(client.first())
    recorded = client.final(server.challenge(FAST))
    server.final(recorded)
    again = ScramServer(SHA256, "two")
    again.first(client.first())
    again.challenge(FAST)
    with pytest.raises(AuthenticationFailed, match="nonce"):
        again.final(recorded)


def test_messages_that_were_tampered_with() -> None:
    def proof() -> tuple[ScramServer, bytes]:
        server, client = ScramServer(SHA256, "s"), ScramClient(SHA256, "user", "pencil", "c")
        server.first(client.first())
        return server, client.final(server.challenge(FAST))

    for change in (
        lambda text: text.replace(b"c=biws", b"c=eSws"),  # "y,,": a downgrade of channel binding
        lambda text: text[:-6] + b"AAAA=" + text[-1:],
        lambda text: text.replace(b",r=cs", b",r=cx"),
        lambda text: text.partition(b",p=")[0],
        lambda text: text + b"\xff",
    ):
        server, final = proof()
        assert change(final) != final
        with pytest.raises(AuthenticationFailed):
            server.final(change(final))


@given(st.binary(max_size=200))
def test_any_bytes_are_refused_or_understood(message: bytes) -> None:
    for step in ("first", "final"):
        server = ScramServer(SHA256, "s")
        if step == "final":
            server.first(b"n,,n=user,r=c")
            server.challenge(FAST)
        try:
            getattr(server, step)(message)
        except AuthenticationFailed:
            continue
        assert step == "first"


def test_the_order_of_messages_is_not_the_clients_choice() -> None:
    with pytest.raises(AuthenticationFailed, match="order"):
        ScramServer(SHA256, "s").final(b"c=biws,r=cs,p=AAAA")


def test_a_client_believes_only_a_server_that_knows_the_password() -> None:
    client = ScramClient(SHA256, "user", "pencil", "c")
    with pytest.raises(AuthenticationFailed):
        client.check(b"v=" + base64.b64encode(bytes(32)))
    client.final(b"r=cs,s=c2FsdA==,i=4096")
    with pytest.raises(AuthenticationFailed):
        client.check(b"v=" + base64.b64encode(bytes(32)))
    with pytest.raises(AuthenticationFailed, match="iterations"):
        client.final(b"r=cs,s=c2FsdA==,i=1")
    with pytest.raises(AuthenticationFailed, match="nonce"):
        client.final(b"r=other,s=c2FsdA==,i=4096")


def test_nobody_learns_which_users_there_are() -> None:
    one, same = (decoy_credential(SHA256, "nobody", b"secret", b"salt", 4096) for _ in range(2))
    assert one == same != decoy_credential(SHA256, "somebody", b"secret", b"salt", 4096)
    with pytest.raises(AuthenticationFailed):
        exchange(ScramClient(SHA256, "nobody", "x", "c"), one)


def test_a_password_in_the_clear_against_the_same_credential() -> None:
    assert password_fits(FAST, "pencil")
    assert not password_fits(FAST, "pen")
    login = plain.read_message(plain.client_message("user", "pencil"))
    assert login == ("user", "pencil")
    assert "pencil" not in repr(login)
    assert repr(FAST.stored_key) not in repr(FAST)
    for wrong in (b"", b"user", b"\0user", b"\0user\0", b"\0\0x", b"other\0user\0x", b"\xff\0a\0b"):
        with pytest.raises(AuthenticationFailed):
            plain.read_message(wrong)


def test_a_delegation_token_logs_in_with_its_secret() -> None:
    key = b"the cluster's key"
    secret = base64.b64encode(token_secret("id", key)).decode()
    client = ScramClient(SHA512, "id", secret, "c", by_token=True)
    assert ScramServer(SHA512, "s").first(client.first()).by_token
    assert exchange(client, token_credential("id", key, SHA512)) == "id"
    with pytest.raises(AuthenticationFailed):
        exchange(
            ScramClient(SHA512, "id", secret, "c", by_token=True), token_credential("id", b"another", SHA512)
        )
