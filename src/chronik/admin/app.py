"""The ASGI application: finds the endpoint, guards it, runs it within its limits, turns values into bytes."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Route
from starlette.types import Receive, Scope, Send

from chronik.admin.context import AdminContext
from chronik.admin.endpoint import Call, Content, Endpoint
from chronik.admin.errors import HttpError, failure_of
from chronik.admin.guard import Guard
from chronik.admin.scrape import why_not_ready

__all__ = ["AdminApp"]

log = logging.getLogger(__name__)

BODY_SECONDS_MAX: Final = 15.0
SWALLOW_SECONDS: Final = 1.0
_HEADERS: Final = {
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "content-security-policy": "default-src 'self'; img-src 'self' data:; style-src 'self' 'unsafe-inline'; "
    "frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
}


async def _unused(_request: Request) -> Response:
    raise NotImplementedError


class AdminApp:
    def __init__(self, endpoints: Sequence[Endpoint], context: AdminContext) -> None:
        self._context = context
        self._guard = Guard(context.settings.bind, context.settings.admin_api_key)
        self._routes = [(Route(one.path, _unused, methods=[one.method]), one) for one in endpoints]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        request = Request(scope, receive)
        try:
            response = await self._answer(scope, request)
        except asyncio.CancelledError:
            raise
        except Exception as error:
            response = self._failed(request, error)
        self._context.http.answers[_method(scope), response.status_code] += 1
        await response(scope, receive, send)

    async def _answer(self, scope: Scope, request: Request) -> Response:
        endpoint, path = self._find(scope)
        self._guard.check(endpoint.access, request.headers)
        if not (endpoint.always or self._context.phase.is_serving):
            raise HttpError(503, "not_ready", why_not_ready(self._context), {"retry-after": "1"})
        query = endpoint.parse_query(request.query_params)
        body = endpoint.parse_body(await _read_body(request, endpoint.body_bytes_max))
        call = Call(self._context, path, query, body, _authorization(request.headers))
        async with asyncio.timeout(endpoint.deadline_s):
            value = await endpoint.function(call)
        if isinstance(value, Content):
            return _response(value.body, value.media_type, value.status, value.headers)
        return _response(msgspec.json.encode(value), "application/json", 200, {})

    def _find(self, scope: Scope) -> tuple[Endpoint, Mapping[str, str]]:
        allowed: list[str] = []
        for route, endpoint in self._routes:
            match, child = route.matches(scope)
            if match is Match.FULL:
                return endpoint, child["path_params"]
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
        return _response(msgspec.json.encode(failure), "application/json", status, headers)


def _method(scope: Scope) -> str:
    """Methods are labels of a metric, so a client must not be able to make up new ones."""
    method = str(scope["method"])
    return method if method in ("GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS") else "other"


def _authorization(headers: Mapping[str, str]) -> str | None:
    key = headers.get("x-api-key")
    return headers.get("authorization") if key is None else f"Bearer {key}"


def _response(body: bytes, media_type: str, status: int, headers: Mapping[str, str]) -> Response:
    extra: dict[str, Any] = {"cache-control": "no-store", **_HEADERS, **headers}
    return Response(body, status, extra, media_type)


async def _swallow(request: Request) -> None:
    """Take in the rest for a moment: a client that is still sending would lose the answer."""
    with contextlib.suppress(TimeoutError, RuntimeError):
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
            await _swallow(request)
            raise too_large
    except TimeoutError:
        raise HttpError(
            408,
            "body_too_slow",
            f"The body did not arrive within {BODY_SECONDS_MAX:g} s.",
            {"connection": "close"},
        ) from None
    return b"".join(parts)
