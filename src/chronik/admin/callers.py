"""Who calls: turns the proof that a request carries into a principal, the same as on Kafka's listeners.

A caller comes with one of: an API key (`Authorization: Bearer KEY` or `X-API-Key`), a user's password
(`Authorization: Basic`), a token of the OAuth issuer (`Bearer`), the cookie of a session, a client
certificate, or the signature of another node. What it may do then is an `Access`, which the endpoint's
`needs` are put to.

Rules: passwords are hashed beside the loop; a wrong proof is answered late, and later each time; a proof is
never logged; requests for what is open to everybody are not looked at.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import logging
import secrets
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from starlette.requests import Request

from chronik.admin.errors import HttpError
from chronik.admin.sessions import HttpSession, SessionProof, Sessions
from chronik.config import Settings
from chronik.log_lines import RepeatingLine
from chronik.security.acls import Operation, ResourceType
from chronik.security.api_keys import digest_of
from chronik.security.exchange import AuthenticationFailed
from chronik.security.principals import ANONYMOUS, MappingRules, NoRuleMatches, distinguished_name
from chronik.security.principals import user_principal as user
from chronik.security.scram import Credential
from chronik.server.access import NODE_PREFIX, Access, Everything, Granted, Looking
from chronik.server.login_failures import Crowded
from chronik.server.node_signature import SCHEME, NotInTime, Signed
from chronik.server.security import Security

__all__ = ["CERTIFICATE", "KEY_PREFIX", "SETTING_KEY", "Caller", "Callers", "host_of"]

log = logging.getLogger(__name__)
_untimely: Final = RepeatingLine(log, logging.WARNING, "refused a request of a node at %s: %s")

KEY_PREFIX: Final = "Key:"
"""Principals of API keys. No user can be called so, and ACLs are not asked about them."""
SETTING_KEY: Final = "admin_api_key"
"""Name of the key that is a setting."""
CERTIFICATE: Final = "certificate"
"""Where the server leaves a client's certificate, in the state of a request."""

REMEMBERED_MAX: Final = 1_000
"""Principals whose decisions are remembered, and passwords that were checked and right."""
_LOOKING: Final = (Operation.READ, Operation.DESCRIBE, Operation.DESCRIBE_CONFIGS)
_NODE_OPERATIONS: Final = (Operation.DESCRIBE,)


@dataclass(frozen=True, slots=True)
class Caller:
    access: Access
    is_anonymous: bool = False
    session: HttpSession | None = None
    """The login of a browser, if its cookie is the proof."""
    password: SessionProof | None = None
    """Tells whether the password of the call is still the user's."""
    expires_ms: int | None = None
    """When the token that came with the call ends."""
    signed: Signed | None = None
    """The signature of another node. The body has yet to be compared with it."""

    @property
    def principal(self) -> str:
        return self.access.principal


class Callers:
    def __init__(self, settings: Settings, security: Security) -> None:
        self._settings = settings
        self._security = security
        key = settings.admin_api_key
        self._own_digest = None if key is None else digest_of(key)
        self._rules = MappingRules(settings.ssl_principal_mapping_rules)
        self._signature = security.node_signature
        self.sessions = Sessions(settings, security.now_ms)
        self._accesses: OrderedDict[tuple[str, str], Access] = OrderedDict()
        self._right: OrderedDict[bytes, Credential] = OrderedDict()
        self._salt = secrets.token_bytes(32)

    def anonymous(self, host: str) -> Caller:
        """A caller without proof. If the guard lets it in, no ACL is asked about it."""
        return Caller(Everything(ANONYMOUS, host), is_anonymous=True)

    async def identify(self, request: Request) -> Caller:
        """HttpError(401) for a proof that is wrong; the caller is anonymous if there is none."""
        host = host_of(request)
        try:
            found = (
                await self._by_header(request, host)
                or self._by_cookie(request, host)
                or self._by_certificate(request, host)
            )
        except AuthenticationFailed as error:
            raise await self._failed(host, error) from None
        return found or self.anonymous(host)

    def is_valid(self, caller: Caller) -> bool:
        """Whether the proof that a call came with is still good: for calls that wait."""
        if caller.expires_ms is not None and self._security.now_ms() >= caller.expires_ms:
            return False
        proof = caller.password if caller.session is None else caller.session.proof
        if proof is not None:
            return proof.access(caller.access.host) is not None
        name = caller.principal.removeprefix(KEY_PREFIX)
        if name in (caller.principal, SETTING_KEY):
            return True
        return any(key.name == name for key in self._security.state.keys.values())

    async def prove(self, name: str, password: str, key: str, host: str) -> SessionProof:
        """What a session is opened by: a password, or a key if one is given; HttpError if it is not right."""
        self._require_room(host, None if key else name)
        try:
            if not key:
                return await self._prove_password(name, password, host)
            digest = digest_of(key.strip())
            access = self._access_by_digest(digest, host)
            if access is None:
                raise AuthenticationFailed("an API key that is not known")
            return SessionProof(access.principal, partial(self._access_by_digest, digest))
        except AuthenticationFailed as error:
            raise await self._failed(host, error) from None

    async def _prove_password(self, name: str, password: str, host: str) -> SessionProof:
        credential = await self.check_password(name, password, host)
        return SessionProof(user(name), partial(self._access_by_credential, name, credential))

    async def _failed(self, host: str, error: AuthenticationFailed) -> HttpError:
        if isinstance(error, Crowded):
            return _crowded()
        await self._security.failures.punish(host, f"HTTP: {error}", user=error.user)
        return HttpError(
            401, "login_failed", "The credentials are not right.", {"www-authenticate": "Bearer"}
        )

    async def _by_header(self, request: Request, host: str) -> Caller | None:
        headers = request.headers
        key = headers.get("x-api-key")
        scheme, _, given = headers.get("authorization", "").partition(" ")
        scheme, given = scheme.lower(), given.strip()
        if key is None and scheme not in ("basic", "bearer", SCHEME):
            return None
        is_signed = key is None and scheme == SCHEME
        if is_signed and (node := self._by_signature(request, given, host)) is not None:
            return node  # whoever guesses on a node's machine does not keep the node out
        if key is None and scheme == "basic":
            return await self._by_password(given, host)
        self._require_room(host)
        if key is not None:
            return await self._by_key(key.strip(), host)
        if scheme == "bearer":
            return await self._by_key(given, host)
        raise AuthenticationFailed("a signature that is no node's")

    async def _by_key(self, given: str, host: str) -> Caller | None:
        access = self._access_by_digest(digest_of(given), host)
        if access is not None:
            return Caller(access)
        authenticator = self._security.authenticator
        if authenticator is not None and authenticator.keys is not None and given.count(".") == 2:
            found = await authenticator.check_token(given, host)
            return Caller(self._access(found.principal, host), expires_ms=found.expires_ms)
        has_keys = self._own_digest is not None or self._security.state.keys
        if not has_keys and self._security.authorizer is None:
            return None  # nothing here asks for a key
        raise AuthenticationFailed("an API key that is not known")

    def _access_by_digest(self, digest: bytes, host: str) -> Access | None:
        """The access of an API key, the setting's or a named one; None if there is no such key."""
        if self._own_digest is not None and hmac.compare_digest(digest, self._own_digest):
            return Everything(KEY_PREFIX + SETTING_KEY, host)
        named = self._security.state.keys.get(digest)
        if named is None:
            return None
        principal = KEY_PREFIX + named.name
        return Looking(principal, host, _LOOKING) if named.read_only else Everything(principal, host)

    def _access_by_credential(self, name: str, credential: Credential, host: str) -> Access | None:
        """What a user may do whose password was right; None if it was changed since."""
        authenticator = self._security.authenticator
        if authenticator is None or authenticator.plain_credential(name) != credential:
            return None
        return self._access(user(name), host)

    def _by_cookie(self, request: Request, host: str) -> Caller | None:
        session = self.sessions.find(request.cookies)
        if session is None:
            return None
        access = session.proof.access(host)
        if access is None:
            self.sessions.end(session)
            return None
        if not session.permits(request.method, request.headers):
            raise HttpError(
                403, "csrf_token_required", "A call with a session's cookie needs its X-CSRF-Token."
            )
        return Caller(access, session=session)

    async def _by_password(self, given: str, host: str) -> Caller | None:
        authenticator = self._security.authenticator
        if authenticator is None:
            if self._settings.admin_api_key is None:
                return None
            self._require_room(host)
            raise AuthenticationFailed("a password, but this node takes none")
        try:
            name, colon, password = base64.b64decode(given, validate=True).decode().partition(":")
        except (binascii.Error, UnicodeDecodeError):
            self._require_room(host)
            raise AuthenticationFailed("a password that cannot be read") from None
        self._require_room(host, name)
        if not colon or not name:
            raise AuthenticationFailed("a password without a user")
        proof = await self._prove_password(name, password, host)
        return Caller(self._access(user(name), host), password=proof)

    def _require_room(self, host: str, user: str | None = None) -> None:
        if not self._security.failures.has_room(host, user):
            raise _crowded()

    async def check_password(self, name: str, password: str, host: str) -> Credential:
        """The credential that the password was checked against; AuthenticationFailed if it is wrong.

        A password that was right is remembered by a digest that only this process can make, and right again
        as long as the user's credential is the same: so that a client need not wait with each request.
        """
        authenticator = self._security.authenticator
        if authenticator is None:
            raise AuthenticationFailed("a password, but this node takes none")
        credential = authenticator.plain_credential(name)
        digest = hmac.digest(self._salt, f"{name}\0{password}".encode(), "sha256")
        if self._right.get(digest) == credential:
            self._right.move_to_end(digest)
            return credential
        if not await authenticator.fits(credential, password, host, name):
            raise AuthenticationFailed("a wrong user or password", user=name)
        self._security.failures.forgive(host, name)
        _remember(self._right, digest, credential)
        return credential

    def _by_signature(self, request: Request, given: str, host: str) -> Caller | None:
        signature = self._signature
        try:
            signed = None if signature is None else signature.check(given, request.method, _target(request))
        except NotInTime as error:
            _untimely(host, host, error)
            raise HttpError(
                401,
                "signature_not_in_time",
                f"{error}: too far, or before this node was started. Are the nodes' clocks the same?",
            ) from None
        if signed is None or not self._security.is_member(signed.node_id):
            return None
        kinds = (ResourceType.CLUSTER,)
        return Caller(Granted(f"{NODE_PREFIX}{signed.node_id}", host, _NODE_OPERATIONS, kinds), signed=signed)

    def _by_certificate(self, request: Request, host: str) -> Caller | None:
        certificate: Mapping[str, Any] | None = request.scope.get("state", {}).get(CERTIFICATE)
        if not certificate:
            return None
        try:
            principal = self._rules.principal(distinguished_name(certificate.get("subject", ())))
        except NoRuleMatches:
            raise AuthenticationFailed("a certificate that no rule maps") from None
        return Caller(self._access(principal, host))

    def _access(self, principal: str, host: str) -> Access:
        authorizer = self._security.authorizer
        if authorizer is None:
            return Everything(principal, host)
        found = self._accesses.get((principal, host))
        if found is None:
            found = authorizer.access(principal, host, is_audited=False)
            _remember(self._accesses, (principal, host), found)
        else:
            self._accesses.move_to_end((principal, host))
        return found


def _crowded() -> HttpError:
    message = "Too many failed logins from this address, or too many logins at once."
    return HttpError(429, "too_many_failures", message, {"retry-after": "5"})


def _target(request: Request) -> str:
    """Path and query, as they were asked for."""
    query = request.url.query
    return f"{request.url.path}?{query}" if query else request.url.path


def host_of(request: Request) -> str:
    return "" if request.client is None else request.client.host


def _remember(kept: OrderedDict[Any, Any], key: Any, value: Any) -> None:
    kept[key] = value
    if len(kept) > REMEMBERED_MAX:
        kept.popitem(last=False)
