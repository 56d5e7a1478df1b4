"""The ASGI application: finds the endpoint, guards it, runs it within its limits, turns values into bytes."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final
from urllib.parse import unquote_to_bytes

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Match, Route
from starlette.types import Receive, Scope, Send

from chronik.admin.callers import Caller, host_of
from chronik.admin.context import AdminContext
from chronik.admin.endpoint import Content, FileContent, HttpAccess, HttpCall, HttpEndpoint
from chronik.admin.errors import HttpError, failure_of
from chronik.admin.guard import login_required
from chronik.admin.scrape import why_not_ready
from chronik.model import ErrorCode, RequestError
from chronik.security.principals import ANONYMOUS
from chronik.security.quotas import REQUEST_SHARE
from chronik.server.changes import NAME_CHARS_MAX, joined, may_have_changed
from chronik.server.throttling import metered

__all__ = ["AdminApp"]

log = logging.getLogger(__name__)

BODY_SECONDS_MAX: Final = 15.0
SEND_SECONDS_MAX: Final = 300.0
PIECE_BYTES: Final = 256 * 1024
SWALLOW_SECONDS: Final = 1.0
PROBES_ONLY: Final = "probes_only"
"""Set in the state of a connection that was admitted for probes only."""
_SLASH: Final = "\0"
"""Stands for a slash within a name while a path is matched."""
_HEADERS: Final = {
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "content-security-policy": "default-src 'self'; img-src 'self' data:; "
    "frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
}


async def _unused(_request: Request) -> Response:
    raise NotImplementedError


class AdminApp:
    def __init__(self, endpoints: Sequence[HttpEndpoint], context: AdminContext) -> None:
        self._context = context
        self._guard = context.guard
        self._callers = context.callers
        self._routes = [(Route(one.path, _unused, methods=[one.method]), one) for one in endpoints]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        request = Request(scope, receive)
        try:
            response = await self._answer(scope, request)
        except ClientDisconnect:
            return  # the client is gone, and a stranger could fill the log with it
        except Exception as error:
            response = self._failed(request, error)
            self._note_refusal(request, response.status_code)
            await _swallow(request)
        self._context.http.answers[_method(scope), response.status_code] += 1
        await response(scope, receive, send)

    async def _answer(self, scope: Scope, request: Request) -> Response:
        endpoint, path = self._find(scope)
        request.state.endpoint = endpoint
        if endpoint.access is not HttpAccess.HEALTH and scope.get("state", {}).get(PROBES_ONLY):
            raise HttpError(
                503,
                "too_many_connections",
                "There are too many HTTP connections: only /health and /ready are answered.",
                {"retry-after": "1", "connection": "close"},
            )
        self._guard.check_site(endpoint.access, request.headers)
        caller = await self._caller(endpoint, request)
        self._guard.check(endpoint.access, is_anonymous=caller.is_anonymous)
        if not (endpoint.always or self._context.phase.is_serving):
            raise HttpError(503, "not_ready", why_not_ready(self._context), {"retry-after": "1"})
        query = endpoint.parse_query(request.query_params)
        request.state.principal = caller.principal
        call = HttpCall(self._context, path, query, None, caller, _authorization(request.headers))
        endpoint.needs.admit(call, call, [])
        if endpoint.access is HttpAccess.CHANGE and caller.access.looks_only:
            raise RequestError(
                ErrorCode.cluster_authorization_failed, "This API key is for looking: it changes nothing."
            )
        with self._context.quotas.one_call(caller.principal, endpoint.quota):
            return await self._serve(endpoint, call, request)

    async def _serve(self, endpoint: HttpEndpoint, call: HttpCall, request: Request) -> Response:
        """The answer to a call that may be made."""
        caller = call.caller
        data = await _read_body(request, endpoint.body_bytes_max)
        if caller.signed is not None and not caller.signed.fits(data):
            raise login_required()
        call = replace(call, body=endpoint.parse_body(data))
        if endpoint.about is not None:
            request.state.names = joined(endpoint.about(call.body))
        is_change = endpoint.access is HttpAccess.CHANGE and not getattr(call.body, "dry_run", False)
        try:
            async with asyncio.timeout(endpoint.deadline_s):
                value = await self._work(endpoint, call)
        except Exception as error:
            if is_change and _may_have_changed(error):
                self._note_change(request, caller)
            raise
        if is_change:
            self._note_change(request, caller)
        response = _response_of(value)
        if endpoint.quota is not None:
            sent = int(response.headers["content-length"])
            self._context.quotas.charge(caller.principal, endpoint.quota, received=len(data), sent=sent)
        return response

    async def _work(self, endpoint: HttpEndpoint, call: HttpCall) -> Any:
        if endpoint.quota != REQUEST_SHARE:
            return await endpoint.function(call)

        async def work() -> Any:
            return await endpoint.function(call)

        quotas, principal = self._context.quotas, call.caller.principal
        return await metered(work(), lambda took_s: quotas.charge_work(principal, took_s))

    def _note_change(self, request: Request, caller: Caller) -> None:
        if caller.signed is None:
            audit = self._context.security.audit
            audit.changed(caller.principal, host_of(request), "http", request.method, _resource(request))

    def _note_refusal(self, request: Request, status: int) -> None:
        if status in (401, 403):
            principal = getattr(request.state, "principal", ANONYMOUS)
            # A stranger chooses paths as it likes: they would be as many entries.
            endpoint: HttpEndpoint | None = getattr(request.state, "endpoint", None)
            template = "" if endpoint is None else endpoint.path
            resource = template if principal == ANONYMOUS else _resource(request)
            audit = self._context.security.audit
            audit.denied(principal, host_of(request), "http", request.method, resource)

    async def _caller(self, endpoint: HttpEndpoint, request: Request) -> Caller:
        """The caller. Where a path is open to everybody, its login is not checked."""
        if endpoint.access is HttpAccess.OPEN:
            return self._callers.anonymous(host_of(request))
        return await self._callers.identify(request)

    def _find(self, scope: Scope) -> tuple[HttpEndpoint, Mapping[str, str]]:
        allowed: list[str] = []
        escaped = _with_escaped_slashes(scope)
        for route, endpoint in self._routes:
            match, child = route.matches(scope if endpoint.dialect is None else escaped)
            if match is Match.FULL:
                names: Mapping[str, str] = child["path_params"]
                if endpoint.dialect is None or escaped is scope:
                    return endpoint, names
                return endpoint, {name: value.replace(_SLASH, "/") for name, value in names.items()}
            if match is Match.PARTIAL:
                allowed.append(endpoint.method)
        if allowed:
            raise HttpError(
                405,
                "method_not_allowed",
                f"{scope['path']} takes {' or '.join(sorted(set(allowed)))}.",
                {"allow": ", ".join(sorted(set(allowed)))},
            )
        raise HttpError(404, "not_found", "There is nothing here; /docs lists what there is.")

    def _failed(self, request: Request, error: Exception) -> Response:
        status, failure = failure_of(error)
        if status == 500:
            log.error("%s %s failed", request.method, request.url.path, exc_info=error)
        headers = error.headers if isinstance(error, HttpError) else {}
        endpoint: HttpEndpoint | None = getattr(request.state, "endpoint", None)
        if endpoint is not None and endpoint.dialect is not None:
            content = endpoint.dialect.failure(status, failure)
            return _response(content.body, content.media_type, content.status, headers)
        return _response(msgspec.json.encode(failure), "application/json", status, headers)


def _with_escaped_slashes(scope: Scope) -> Scope:
    """The scope with a path in which a slash that was sent as %2F separates nothing."""
    raw: bytes = scope.get("raw_path") or b""
    if b"%2f" not in raw.lower():
        return scope
    parts = (unquote_to_bytes(part).decode(errors="replace") for part in raw.split(b"?")[0].split(b"/"))
    return {**scope, "path": "/".join(part.replace(_SLASH, "").replace("/", _SLASH) for part in parts)}


def _resource(request: Request) -> str:
    """The path and what the body names; what a client asks for in a query is its own business."""
    path, names = request.url.path[:NAME_CHARS_MAX], getattr(request.state, "names", "")
    return f"{path} {names}" if names else path


def _may_have_changed(error: Exception) -> bool:
    """Whether a call that failed with this error may have changed something: perhaps only another node's
    answer is missing."""
    if isinstance(error, HttpError):
        return error.status >= 500 and error.status != 503
    return may_have_changed(error)


def _method(scope: Scope) -> str:
    """Methods are labels of a metric, so a client must not be able to make up new ones."""
    method = str(scope["method"])
    return method if method in ("GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS") else "other"


def _authorization(headers: Mapping[str, str]) -> str | None:
    key = headers.get("x-api-key")
    return headers.get("authorization") if key is None else f"Bearer {key}"


def _response_of(value: Any) -> Response:
    if isinstance(value, FileContent):
        return _FileResponse(value)
    if isinstance(value, Content):
        return _response(value.body, value.media_type, value.status, value.headers)
    return _response(msgspec.json.encode(value), "application/json", 200, {})


def _response(body: bytes, media_type: str, status: int, headers: Mapping[str, str]) -> Response:
    extra: dict[str, Any] = {"cache-control": "no-store", **_HEADERS, **headers}
    return Response(body, status, extra, media_type)


class _FileResponse(Response):
    """Sends a file in pieces; a client that takes too long to read them is cut off."""

    def __init__(self, content: FileContent) -> None:
        super().__init__(media_type=content.media_type)
        self._content = content
        size = os.fstat(content.file.fileno()).st_size
        extra = {"cache-control": "no-store", **_HEADERS, **content.headers, "content-length": str(size)}
        self.init_headers(extra)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        file = self._content.file
        try:
            async with asyncio.timeout(SEND_SECONDS_MAX):
                await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
                while piece := await asyncio.to_thread(file.read, PIECE_BYTES):
                    await send({"type": "http.response.body", "body": piece, "more_body": True})
                await send({"type": "http.response.body", "body": b""})
        finally:
            self._content.close()


async def _swallow(request: Request) -> None:
    """Take in the rest of a refused request for a moment: a client that is still sending would find its
    connection reset, and lose the answer."""
    with contextlib.suppress(TimeoutError, RuntimeError, ClientDisconnect):
        async with asyncio.timeout(SWALLOW_SECONDS):
            async for _ in request.stream():
                pass


async def _read_body(request: Request, bytes_max: int) -> bytes:
    too_large = HttpError(
        413, "body_too_large", f"The body may have at most {bytes_max} bytes.", {"connection": "close"}
    )
    length = request.headers.get("content-length", "")
    parts, size = [], int(length) if length.isdecimal() else 0
    refused = size > bytes_max
    try:
        if not refused:
            size = 0
            async with asyncio.timeout(BODY_SECONDS_MAX):
                async for part in request.stream():
                    size += len(part)
                    if size > bytes_max:
                        refused = True
                        break
                    parts.append(part)
        if refused:
            raise too_large
    except TimeoutError:
        raise HttpError(
            408,
            "body_too_slow",
            f"The body did not arrive within {BODY_SECONDS_MAX:g} s.",
            {"connection": "close"},
        ) from None
    return b"".join(parts)
