"""API keys with names: made, listed, revoked. What is kept of a key cannot be turned back into it.

ACLs are not asked about keys, so only super users and full keys make them: whoever else made one could do
with it what an ACL denies him. Revoking one takes away rights and gives none; the list shows no secrets.
"""

from __future__ import annotations

import secrets

import msgspec

from chronik.admin.callers import SETTING_KEY
from chronik.admin.endpoint import HttpAccess, HttpCall, endpoint
from chronik.admin.errors import HttpError
from chronik.metadata.commands import PutApiKey, RemoveApiKey
from chronik.model import ErrorCode, RequestError
from chronik.security.acls import Operation
from chronik.security.api_keys import KEY_BYTES, NamedKey, check_name, digest_of, key_text
from chronik.server.gate import on_cluster


class NewKey(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: str
    read_only: bool = False
    """Lets its holder look at everything, and change nothing."""


class KeyView(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    read_only: bool
    created_ms: int


class KeyMade(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    read_only: bool
    key: str
    """Shown here and never again."""


class KeyList(msgspec.Struct, frozen=True):
    keys: list[KeyView]


class KeyRevoked(msgspec.Struct, frozen=True):
    name: str


@endpoint(
    "GET", "/admin/keys", summary="API keys by name", needs=on_cluster(Operation.DESCRIBE), answer=KeyList
)
async def keys(call: HttpCall) -> KeyList:
    held = sorted(call.context.state.security.keys.values(), key=lambda key: key.name)
    return KeyList([KeyView(name=k.name, read_only=k.read_only, created_ms=k.created_ms) for k in held])


@endpoint(
    "POST",
    "/admin/keys",
    summary="Make an API key",
    needs=on_cluster(Operation.ALTER),
    body=NewKey,
    answer=KeyMade,
    access=HttpAccess.CHANGE,
    about=lambda body: [body.name],
)
async def make_key(call: HttpCall) -> KeyMade:
    """For super users and full API keys only, since ACLs do not bind a key. The answer is the only place
    where the key is ever shown. Every node knows it at once."""
    if not call.access.is_super:
        raise RequestError(
            ErrorCode.cluster_authorization_failed,
            "API keys are made by super users and full API keys only: no ACL binds a key.",
        )
    wanted: NewKey = call.body
    try:
        check_name(wanted.name)
    except ValueError as error:
        raise HttpError(400, "invalid_body", str(error)) from None
    if wanted.name == SETTING_KEY:
        raise HttpError(409, "duplicate_resource", f"{SETTING_KEY} is the key that is a setting.")
    made = key_text(secrets.token_bytes(KEY_BYTES))
    key = NamedKey(
        name=wanted.name,
        digest=digest_of(made),
        read_only=wanted.read_only,
        created_ms=call.context.services.now_ms(),
    )
    await call.context.services.metadata.submit(PutApiKey(key=key))
    return KeyMade(name=key.name, read_only=key.read_only, key=made)


@endpoint(
    "DELETE",
    "/admin/keys/{name}",
    summary="Revoke an API key",
    needs=on_cluster(Operation.ALTER),
    answer=KeyRevoked,
    access=HttpAccess.CHANGE,
)
async def revoke_key(call: HttpCall) -> KeyRevoked:
    """The next request that carries it is refused."""
    await call.context.services.metadata.submit(RemoveApiKey(name=call.path["name"]))
    return KeyRevoked(call.path["name"])
