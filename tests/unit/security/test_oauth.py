"""OAUTHBEARER: which tokens are believed."""

from __future__ import annotations

from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from jwt.algorithms import ECAlgorithm, RSAAlgorithm

from chronik.security.exchange import AuthenticationFailed
from chronik.security.oauth import TokenRules, client_message, read_message

NOW = 1_800_000_000.0
CLAIMS = {"sub": "alice", "iss": "https://issuer", "aud": "chronik", "exp": NOW + 60}


@pytest.fixture(scope="module")
def keys() -> dict[str, Any]:
    return {"rsa": rsa.generate_private_key(65537, 2048), "ec": ec.generate_private_key(ec.SECP256R1())}


@pytest.fixture(scope="module")
def rules(keys: dict[str, Any]) -> TokenRules:
    documents = {
        "one": RSAAlgorithm.to_jwk(keys["rsa"].public_key(), as_dict=True) | {"alg": "RS256"},
        "two": ECAlgorithm.to_jwk(keys["ec"].public_key(), as_dict=True) | {"alg": "ES256"},
    }
    known = {name: jwt.PyJWK(document) for name, document in documents.items()}
    return TokenRules(keys=known, issuer="https://issuer", audience=("chronik",), clock_skew_s=5)


def token(key: Any, algorithm: str = "RS256", kid: str | None = "one", **changes: object) -> str:
    claims = {name: value for name, value in {**CLAIMS, **changes}.items() if value is not None}
    return jwt.encode(claims, key, algorithm, headers={"kid": kid} if kid else None)


def test_tokens_that_are_believed(keys: dict[str, Any], rules: TokenRules) -> None:
    found = rules.check(token(keys["rsa"]), NOW)
    assert (found.principal, found.expires_ms) == ("User:alice", int((NOW + 60) * 1000))
    assert rules.check(token(keys["ec"], "ES256", "two", aud=["x", "chronik"]), NOW).principal == "User:alice"
    assert rules.check(token(keys["rsa"], exp=NOW - 4), NOW).principal == "User:alice", "within the skew"


def test_tokens_that_are_not(keys: dict[str, Any], rules: TokenRules) -> None:
    stranger = rsa.generate_private_key(65537, 2048)
    refused = {
        "another key": token(stranger),
        "unknown key": token(keys["rsa"], kid="three"),
        "no key id, several keys": token(keys["rsa"], kid=None),
        "not signed": jwt.encode(CLAIMS, "", "none", headers={"kid": "one"}),
        "shared key": jwt.encode(CLAIMS, "x" * 64, "HS256", headers={"kid": "one"}),
        "another algorithm of the key": token(keys["rsa"], "RS512"),
        "expired": token(keys["rsa"], exp=NOW - 6),
        "not yet": token(keys["rsa"], nbf=NOW + 6),
        "never ends": token(keys["rsa"], exp=None),
        "another issuer": token(keys["rsa"], iss="https://other"),
        "no issuer": token(keys["rsa"], iss=None),
        "another audience": token(keys["rsa"], aud="other"),
        "no audience": token(keys["rsa"], aud=None),
        "nobody": token(keys["rsa"], sub=None),
        "cut": token(keys["rsa"])[:-4],
        "noise": "a.b.c",
    }
    for why, text in refused.items():
        with pytest.raises(AuthenticationFailed):
            print(why, rules.check(text, NOW))


def test_the_message_around_a_token() -> None:
    assert read_message(client_message("a.b.c")) == "a.b.c"
    assert read_message(b"n,a=alice,\x01auth=Bearer a.b.c\x01traceId=1\x01\x01") == "a.b.c"
    for wrong in (
        b"",
        b"n,,",
        b"n,,\x01\x01",
        b"n,,\x01auth=Basic x\x01\x01",
        b"n,,\x01auth=Bearer \x01\x01",
        b"\xff",
    ):
        with pytest.raises(AuthenticationFailed):
            read_message(wrong)
