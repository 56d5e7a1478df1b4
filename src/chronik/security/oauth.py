"""SASL OAUTHBEARER (RFC 7628): a signed token (JWT) says who somebody is. Pure; PyJWT checks the signature.

A refused token is answered as the RFC wants it: a JSON object with the reason, to which the client answers
with one byte 0x01, and only then the exchange has failed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from chronik.security.exchange import Authenticated, AuthenticationFailed
from chronik.security.principals import user_principal

__all__ = ["ALGORITHMS", "TokenRules", "client_message", "read_message", "refusal"]

ALGORITHMS: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
"""Signatures with a public key only: a shared key would let the one who checks tokens make them, too."""
_SEPARATOR: Final = "\x01"


def read_message(message: bytes) -> str:
    """The token in the client's first message."""
    try:
        text = message.decode("ascii")
    except UnicodeDecodeError:
        raise AuthenticationFailed("the OAUTHBEARER message is not ASCII") from None
    header, *fields = text.split(_SEPARATOR)
    if not header.startswith(("n,", "y,")) or fields[-2:] != ["", ""]:
        raise AuthenticationFailed("the OAUTHBEARER message is malformed")
    pairs = dict(field.partition("=")[::2] for field in fields[:-2])
    scheme, _, token = pairs.get("auth", "").partition(" ")
    if scheme.lower() != "bearer" or not token:
        raise AuthenticationFailed("the OAUTHBEARER message has no bearer token")
    return token.strip()


def client_message(token: str) -> bytes:
    return f"n,,{_SEPARATOR}auth=Bearer {token}{_SEPARATOR}{_SEPARATOR}".encode()


def refusal() -> bytes:
    return json.dumps({"status": "invalid_token"}).encode()


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRules:
    """What a token must say to be believed."""

    keys: Mapping[str | None, Any]
    """Public keys by key id (PyJWT's PyJWK); the only one serves tokens without an id."""
    issuer: str | None = None
    audience: tuple[str, ...] = ()
    algorithms: tuple[str, ...] = ALGORITHMS
    clock_skew_s: float = 30.0
    subject_claim: str = "sub"

    def check(self, token: str, now_s: float) -> Authenticated:
        """Who the token speaks of; AuthenticationFailed if it is not to be believed."""
        import jwt

        try:
            header = jwt.get_unverified_header(token)
            algorithm = header.get("alg")
            if algorithm not in self.algorithms:
                raise AuthenticationFailed("the token is signed in a way that is not accepted")
            key = self._key(header.get("kid"))
            if key.algorithm_name != algorithm:
                raise AuthenticationFailed("the token is signed in another way than its key says")
            claims = jwt.decode(
                token,
                key,
                algorithms=[algorithm],
                # Times are checked below against the caller's clock.
                options={
                    "verify_exp": False,
                    "verify_nbf": False,
                    "verify_iat": False,
                    "verify_aud": bool(self.audience),
                    "require": ["exp"],
                },
                audience=list(self.audience) or None,
                issuer=self.issuer,
            )
        except jwt.PyJWTError as error:
            raise AuthenticationFailed(f"the token is not valid: {type(error).__name__}") from None
        return self._read(claims, now_s)

    def _key(self, key_id: object) -> Any:
        if key_id is None and len(self.keys) == 1:
            return next(iter(self.keys.values()))
        found = self.keys.get(key_id if isinstance(key_id, str) else None)
        if found is None:
            raise AuthenticationFailed("no key is known by which the token could be checked")
        return found

    def _read(self, claims: Mapping[str, Any], now_s: float) -> Authenticated:
        expires, begins = _time(claims.get("exp")), _time(claims.get("nbf", 0))
        subject = claims.get(self.subject_claim)
        if now_s > expires + self.clock_skew_s:
            raise AuthenticationFailed("the token has expired")
        if now_s < begins - self.clock_skew_s:
            raise AuthenticationFailed("the token is not valid yet")
        if not isinstance(subject, str) or not subject:
            raise AuthenticationFailed(f"the token has no claim {self.subject_claim}")
        return Authenticated(user_principal(subject), expires_ms=int(expires * 1000))


def _time(value: object) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not abs(value) < 1e12:
        raise AuthenticationFailed("the token's times are not numbers, or out of range")
    return float(value)
