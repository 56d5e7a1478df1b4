"""Delegation tokens (KIP-48): a user hands a job a secret that ends by itself. Pure.

A token's secret is the HMAC of its id under the cluster's key, so that no node has to keep it: whoever knows
the key can make it again, and the metadata log holds only who may do what until when. A client logs in with
SCRAM, with the id as its name, the secret in base64 as its password, and the extension `tokenauth`.
"""

from __future__ import annotations

import base64
import hmac
from collections.abc import Iterable
from itertools import islice
from typing import Final

import msgspec

from chronik.security.scram import ITERATIONS_MIN, Credential, Mechanism, make_credential

__all__ = ["DelegationToken", "may_renew", "token_credential", "token_secret", "tokens_to_remove"]

_SALT: Final = b"chronik delegation token "
EXPIRED_MS_KEPT: Final = 60_000
"""How long an expired token stays in the metadata. By then no renewal is under way any more that a node with
a slower clock accepted."""


class DelegationToken(msgspec.Struct, frozen=True, kw_only=True):
    token_id: str
    owner: str
    """Who somebody is that logs in with it."""
    requester: str
    """Who had it made, perhaps for somebody else (KIP-373)."""
    renewers: tuple[str, ...] = ()
    issued_ms: int
    expires_ms: int
    """Moved by a renewal, never beyond `ends_ms`."""
    ends_ms: int


def token_secret(token_id: str, key: bytes) -> bytes:
    return hmac.digest(key, token_id.encode(), "sha512")


def token_credential(token_id: str, key: bytes, mechanism: Mechanism) -> Credential:
    """What SCRAM checks a login against. Slow on purpose."""
    password = base64.b64encode(token_secret(token_id, key)).decode()
    salt = hmac.digest(key, _SALT + token_id.encode(), "sha256")
    return make_credential(mechanism, password, salt, ITERATIONS_MIN)


def may_renew(token: DelegationToken, principal: str) -> bool:
    return principal in (token.owner, token.requester, *token.renewers)


def tokens_to_remove(tokens: Iterable[DelegationToken], now_ms: int, count_max: int) -> list[str]:
    """Ids of tokens that expired and are needed no more."""
    gone = (token.token_id for token in tokens if token.expires_ms + EXPIRED_MS_KEPT <= now_ms)
    return list(islice(gone, count_max))
