"""The console: files of the package, served as they are."""

from __future__ import annotations

import importlib.resources
import re
from typing import Final

from chronik.admin.endpoint import Content, HttpAccess, HttpCall, endpoint
from chronik.admin.errors import HttpError
from chronik.server.gate import NOTHING

_MEDIA_TYPES: Final = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
    "txt": "text/plain; charset=utf-8",
}
_NAME: Final = re.compile(r"(?:(?:pages|vendor)/)?[a-zA-Z][a-zA-Z0-9_-]*\.(html|css|js|svg|txt)")


def _asset(name: str) -> Content:
    match = _NAME.fullmatch(name)
    file = importlib.resources.files("chronik.admin") / "console" / name if match else None
    if match is None or file is None or not file.is_file():
        raise HttpError(404, "not_found", "The console has no such file.")
    return Content(file.read_bytes(), _MEDIA_TYPES[match[1]], headers={"cache-control": "no-cache"})


@endpoint(
    "GET",
    "/",
    needs=NOTHING,
    summary="The console",
    media_type="text/html",
    always=True,
    access=HttpAccess.OPEN,
)
async def console_page(_call: HttpCall) -> Content:
    return _asset("index.html")


@endpoint(
    "GET",
    "/console/{file:path}",
    needs=NOTHING,
    summary="A file of the console",
    media_type="text/javascript",
    always=True,
    access=HttpAccess.OPEN,
)
async def console_asset(call: HttpCall) -> Content:
    return _asset(call.path["file"])
