"""Who may call what. Decided from the settings and a request's headers alone."""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from chronik.admin.endpoint import Access
from chronik.admin.errors import HttpError

__all__ = ["Guard", "is_loopback"]


def is_loopback(host: str) -> bool:
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


@dataclass(frozen=True, slots=True)
class Guard:
    """The rules for one node, which listens on `bind` and knows `api_key`."""

    bind: str
    api_key: str | None

    @property
    def is_local(self) -> bool:
        """Only this machine can reach the node."""
        return is_loopback(self.bind)

    def check(self, access: Access, headers: Mapping[str, str]) -> None:
        """HttpError unless this call may go on."""
        self._check_site(headers)
        if access is Access.OPEN:
            return
        if self.api_key is not None:
            self._check_key(self.api_key, headers)
        elif access is Access.CHANGE and not self.is_local:
            raise HttpError(
                403,
                "api_key_not_set",
                "This node is reachable from other machines, so calls that change something need an API key: "
                "start it with CHRONIK_ADMIN_API_KEY set.",
            )

    def _check_site(self, headers: Mapping[str, str]) -> None:
        """A page of another site must not use a visitor's browser to get in (CSRF, DNS rebinding)."""
        host = headers.get("host", "")
        if self.is_local and host and not is_loopback(_name(host)):
            raise HttpError(403, "foreign_host", f"This node answers on {self.bind} only, not as {host!r}.")
        origin = headers.get("origin")
        if origin is not None and urlsplit(origin).netloc != host:
            raise HttpError(403, "foreign_origin", "Pages of another site may not call this node.")

    def _check_key(self, api_key: str, headers: Mapping[str, str]) -> None:
        given = headers.get("x-api-key")
        if given is None:
            scheme, _, given = headers.get("authorization", "").partition(" ")
            if scheme.lower() != "bearer":
                given = ""
        if not hmac.compare_digest(given.strip().encode(), api_key.encode()):
            raise HttpError(
                401,
                "api_key_required",
                "This call needs the API key: send it as 'Authorization: Bearer KEY' or 'X-API-Key: KEY'.",
                {"www-authenticate": "Bearer"},
            )


def _name(host: str) -> str:
    """The host of a Host header without its port."""
    return host.rsplit(":", 1)[0] if not host.endswith("]") else host
