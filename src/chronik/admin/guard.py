"""Which calls need a login, and under which host names and from which web pages a node may be called.

Decided from the settings and a request's headers alone. What a caller who logged in may do is decided by the
endpoint's `needs`.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from chronik.admin.endpoint import HttpAccess
from chronik.admin.errors import HttpError
from chronik.config import Settings, is_loopback
from chronik.server.listeners import listener_specs

__all__ = ["Guard", "login_required"]


_FOR_EVERY_SITE: Final = frozenset({HttpAccess.OPEN, HttpAccess.HEALTH, HttpAccess.METRICS})


@dataclass(frozen=True, slots=True, kw_only=True)
class Guard:
    """The rules for one node."""

    is_local: bool = True
    """Only this machine can reach the node."""
    api_key: str | None = None
    hosts: frozenset[str] = frozenset()
    """Names and addresses of the node besides loopback's."""
    any_address: bool = False
    """The node listens on every address: which ones the machine has changes while it runs."""
    has_authorizer: bool = False
    """ACLs decide: then every call needs a login, on loopback too."""
    has_users: bool = False
    """A Kafka listener asks for a login: then nobody changes anything here without one either."""
    is_closed: bool = False
    """Every Kafka listener asks for a login: then calls that show records need one too."""
    metrics_need_key: bool = False
    health_needs_key: bool = False

    @staticmethod
    def of(settings: Settings) -> Guard:
        asking = [spec.has_sasl for spec in listener_specs(settings)]
        advertised = settings.advertised(kafka_port=settings.kafka_port).host
        named = (settings.http_hosts or "").split(",")
        return Guard(
            is_local=settings.is_local,
            api_key=settings.admin_api_key,
            hosts=frozenset(filter(None, map(_plain, (settings.bind, advertised, *named)))),
            any_address=settings.is_everywhere,
            has_authorizer=settings.authorizer,
            has_users=any(asking),
            is_closed=all(asking),
            metrics_need_key=settings.metrics_need_key,
            health_needs_key=settings.health_needs_key,
        )

    def check(self, access: HttpAccess, *, is_anonymous: bool) -> None:
        """HttpError unless this call may go on."""
        if not is_anonymous or not self._needs_login(access):
            return
        if self._knows_anybody or self.is_closed or (self.has_users and access is HttpAccess.CHANGE):
            raise login_required()
        if access is HttpAccess.CHANGE and not self.is_local:
            raise HttpError(
                403,
                "api_key_not_set",
                "This node is reachable from other machines, so calls that change something need an API key: "
                "start it with CHRONIK_ADMIN_API_KEY set.",
            )

    def shows_names(self, *, is_anonymous: bool) -> bool:
        """Whether figures may name topics and groups: only to those who may see their status."""
        return not (is_anonymous and self._knows_anybody and self._needs_login(HttpAccess.STATUS))

    @property
    def _knows_anybody(self) -> bool:
        return self.api_key is not None or self.has_authorizer

    def _needs_login(self, access: HttpAccess) -> bool:
        match access:
            case HttpAccess.OPEN:
                return False
            case HttpAccess.HEALTH:
                return self.health_needs_key
            case HttpAccess.METRICS:
                return self.metrics_need_key
            case HttpAccess.STATUS:
                return self.has_authorizer or not self.is_local
            case _:
                return True

    def check_site(self, access: HttpAccess, headers: Mapping[str, str]) -> None:
        """A page of another site must not use a visitor's browser to get in (CSRF, DNS rebinding), nor to
        have the node work: browsers send no Origin with a GET that a page cannot read."""
        host = headers.get("host", "")
        if host and not self._is_own(_plain(_name(host))):
            raise HttpError(
                403,
                "foreign_host",
                f"This node does not answer as {_name(host)[:100]!r}: further names of it belong into its "
                "setting http_hosts.",
            )
        origin = headers.get("origin")
        if origin is not None and _netloc(origin) != host:
            raise _foreign_origin()
        if headers.get("sec-fetch-site") == "cross-site" and access not in _FOR_EVERY_SITE:
            raise _foreign_origin()

    def _is_own(self, name: str) -> bool:
        """Rebinding needs a name that its owner can point elsewhere; an address cannot lie."""
        return is_loopback(name) or name in self.hosts or (self.any_address and _is_address(name))


def _foreign_origin() -> HttpError:
    return HttpError(403, "foreign_origin", "Pages of another site may not call this node.")


def login_required() -> HttpError:
    return HttpError(
        401,
        "login_required",
        "This call needs an API key ('Authorization: Bearer KEY' or 'X-API-Key: KEY') or a user's password "
        "('Authorization: Basic').",
        {"www-authenticate": "Bearer"},
    )


def _name(host: str) -> str:
    """The host of a Host header without its port."""
    return host.rsplit(":", 1)[0] if not host.endswith("]") else host


def _plain(name: str) -> str:
    """One form of a name: case, brackets and a dot at the end make no difference."""
    return name.strip().strip("[]").rstrip(".").lower()


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _netloc(origin: str) -> str:
    try:
        return urlsplit(origin).netloc
    except ValueError:
        return ""
