"""Logging in to the console and out of it."""

from __future__ import annotations

import msgspec

from chronik.admin.endpoint import Content, HttpAccess, HttpCall, endpoint
from chronik.admin.errors import HttpError
from chronik.admin.visible import allowed_anywhere, allowed_on
from chronik.security.acls import CLUSTER_NAME, ResourceType
from chronik.server.gate import NOTHING


class NewSession(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    user: str = ""
    password: str = ""
    key: str = ""
    """An API key, instead of user and password."""

    def __repr__(self) -> str:
        return f"NewSession({self.user!r})"


class SessionView(msgspec.Struct, frozen=True, kw_only=True):
    principal: str
    is_anonymous: bool
    csrf_token: str | None
    """Calls with the session's cookie that are not GET carry it as `X-CSRF-Token`."""
    ends_ms: int | None
    allowed: dict[str, tuple[str, ...]]
    """Operations by type of resource: on the cluster, and on some topic, group and transactional id. Empty in
    the answer to a login."""


_KINDS = (ResourceType.CLUSTER, ResourceType.TOPIC, ResourceType.GROUP, ResourceType.TRANSACTIONAL_ID)


@endpoint(
    "POST",
    "/session",
    summary="Log in, for browsers",
    needs=NOTHING,
    body=NewSession,
    answer=SessionView,
    access=HttpAccess.OPEN,
    body_bytes_max=64 * 1024,
)
async def log_in(call: HttpCall) -> Content:
    """It takes a user's password or an API key. The answer sets a cookie, and names a token against CSRF."""
    given: NewSession = call.body
    if not given.key and not given.user:
        raise HttpError(400, "invalid_body", "Send user and password, or a key.")
    callers = call.context.callers
    proof = await callers.prove(given.user, given.password, given.key, call.access.host)
    session, cookie = callers.sessions.begin(proof)
    call.context.security.audit.changed(proof.principal, call.access.host, "http", "login", "/session")
    view = SessionView(
        principal=proof.principal,
        is_anonymous=False,
        csrf_token=session.csrf_token,
        ends_ms=session.ends_ms,
        allowed={},
    )
    return Content(msgspec.json.encode(view), "application/json", headers={"set-cookie": cookie})


@endpoint("GET", "/session", summary="Who is logged in", needs=NOTHING, answer=SessionView, always=True)
async def session(call: HttpCall) -> SessionView:
    """401 where a login is needed and there is none."""
    held = call.caller.session
    return SessionView(
        principal=call.caller.principal,
        is_anonymous=call.caller.is_anonymous,
        csrf_token=None if held is None else held.csrf_token,
        ends_ms=None if held is None else held.ends_ms,
        allowed={kind.name.lower(): _allowed(call, kind) for kind in _KINDS},
    )


def _allowed(call: HttpCall, kind: ResourceType) -> tuple[str, ...]:
    return (
        allowed_on(call, kind, CLUSTER_NAME) if kind is ResourceType.CLUSTER else allowed_anywhere(call, kind)
    )


@endpoint("DELETE", "/session", summary="Log out", needs=NOTHING, media_type="application/json", always=True)
async def log_out(call: HttpCall) -> Content:
    held = call.caller.session
    if held is None:
        raise HttpError(409, "no_session", "Nobody is logged in by a cookie.")
    cookie = call.context.callers.sessions.end(held)
    audit = call.context.security.audit
    audit.changed(call.caller.principal, call.access.host, "http", "logout", "/session")
    return Content(b"{}", "application/json", headers={"set-cookie": cookie})
