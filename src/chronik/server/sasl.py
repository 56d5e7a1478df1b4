"""Logins: who is on the other side of a connection, and how far the proof of that has come.

`Authenticator` is the node's: credentials, mechanisms, and the memory of failures. `Session` is a
connection's. A connection of a listener with SASL begins with nothing: ApiVersions, SaslHandshake and
SaslAuthenticate are answered, everything else closes it. After that the session has a principal, and where
sessions are limited in time (KIP-368) an end, after which only a new login is answered.

Rules: no password is hashed on the event loop; an address that keeps failing waits longer each time; how an
exchange failed is told to the client in one sentence that is the same for a wrong name and a wrong password.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple

from chronik.config import Settings
from chronik.metadata.levels import LEVEL_NODE_KEY
from chronik.metadata.store import MetadataStore
from chronik.model import ErrorCode, PeerError
from chronik.security import oauth, plain
from chronik.security.exchange import MESSAGE_BYTES_MAX, Authenticated, AuthenticationFailed
from chronik.security.principals import user_principal
from chronik.security.scram import (
    INVALID_CREDENTIALS,
    ITERATIONS_MIN,
    MECHANISMS,
    Credential,
    Mechanism,
    ScramServer,
    make_credential,
    password_fits,
)
from chronik.security.tokens import token_credential
from chronik.security.warrants import is_signed_by
from chronik.server.access import EVERYTHING, HTTP, NODE_PREFIX, QUERY, Access, Authorizer
from chronik.server.decoys import Decoys, first_credential
from chronik.server.hash_queue import HashQueue
from chronik.server.jwks import KeySource
from chronik.server.login_failures import DELAY_SECONDS_MAX, UNSEEN_SECONDS, Crowded, LoginFailures
from chronik.server.own_clients import OWN_USERS, OwnClients
from chronik.wire.api import ApiKey

__all__ = [
    "BEFORE_LOGIN",
    "NODE_MECHANISM",
    "AuthReply",
    "Authenticator",
    "Session",
]

BEFORE_LOGIN: Final = frozenset({ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE})
NODE_MECHANISM: Final = "CHRONIK-NODE"
"""SCRAM-SHA-256 with the cluster's secret as password, for the nodes themselves; on their own listener."""

FRAME_BYTES_MAX: Final = MESSAGE_BYTES_MAX * 2
"""Longest frame before a login."""
LOGIN_SECONDS_MAX: Final = 30.0
REQUESTS_MAX: Final = 32
"""Requests that a login may take: clients need three to seven, and who has not said who it is gets no work
done for as long as it likes."""


class AuthReply(NamedTuple):
    error_code: ErrorCode
    message: str | None
    data: bytes
    lifetime_ms: int = 0


class Authenticator:
    def __init__(
        self,
        settings: Settings,
        metadata: MetadataStore,
        authorizer: Authorizer | None,
        *,
        now_ms: Callable[[], int],
        node_secrets: tuple[str, ...],
        own_clients: OwnClients,
        failures: LoginFailures,
        decoys: Decoys,
    ) -> None:
        self._metadata = metadata
        self.authorizer = authorizer
        self.now_ms = now_ms
        self.mechanisms = tuple(name.strip() for name in settings.sasl_enabled_mechanisms.split(",") if name)
        self.reauth_ms = settings.connections_max_reauth_ms
        self._decoys = decoys
        self._node_secrets = node_secrets
        self._own_clients = own_clients
        self._own_credentials: dict[str, tuple[Credential, ...]] = {}
        """Credentials of query processes and of nodes."""
        self._making = asyncio.Lock()
        key = settings.delegation_token_secret_key
        self.token_key = None if key is None else key.encode()
        self.keys = None if settings.sasl_oauthbearer_jwks is None else KeySource(settings)
        self._hashing = HashQueue(failures.require_room)
        self._checking = HashQueue(failures.require_room)
        """For signatures of tokens, which must not wait behind passwords."""
        self.failures = failures

    async def close(self) -> None:
        """End what logins have under way."""
        self._hashing.close()
        self._checking.close()
        if self.keys is not None:
            await self.keys.close()

    # --- credentials ---

    async def credential(self, mechanism: Mechanism, user: str, host: str, *, by_token: bool) -> Credential:
        """The credential that a SCRAM login is checked against; a decoy if the user does not exist."""
        security = self._metadata.state.security
        # Made in any case, so that the time it takes does not show whether the user exists.
        decoy = self._decoys.scram(mechanism, user)
        if by_token:
            token = security.tokens.get(user)
            if token is not None and self.token_key is not None and token.expires_ms > self.now_ms():
                arguments = (user, self.token_key, mechanism)
                return await self._hashing.run(host, token_credential, *arguments, user=user)
        elif (found := security.users.get(user, {}).get(mechanism.name)) is not None:
            return found
        return decoy

    async def own_credentials(self, user: str) -> tuple[Credential, ...]:
        """Credentials of nodes and of their own clients, one for each secret that nodes accept."""
        kind = user if user in OWN_USERS else ""
        async with self._making:
            if kind not in self._own_credentials:
                salt, made = secrets.token_bytes(16), []
                for password in self._own_clients.passwords(kind) if kind else self._node_secrets:
                    arguments = (MECHANISMS["SCRAM-SHA-256"], password, salt, ITERATIONS_MIN)
                    made.append(await asyncio.to_thread(make_credential, *arguments))
                self._own_credentials[kind] = tuple(made)
        return self._own_credentials[kind]

    def own_client(self, user: str, scram: ScramServer) -> Authenticated:
        """Who logged in with the nodes' secret: a client of one of them, or a node that the cluster knows,
        which proves the key that it registered with."""
        if user in OWN_USERS:
            return self._own_clients.who(user, scram)
        if user not in map(str, self._metadata.state.brokers):
            raise AuthenticationFailed(INVALID_CREDENTIALS)
        state = self._metadata.state
        known = state.node_keys.get(int(user))
        is_proven = known is None or scram.is_signed(partial(is_signed_by, known))
        if not is_proven and state.level >= LEVEL_NODE_KEY:
            raise AuthenticationFailed(f"somebody has the secret but not the key of node {user}")

        def holds() -> bool:
            now = self._metadata.state
            if int(user) not in now.brokers or now.node_keys.get(int(user)) != known:
                return False
            return is_proven or now.level < LEVEL_NODE_KEY

        return Authenticated(NODE_PREFIX + user, holds=holds)

    def plain_credential(self, user: str) -> Credential:
        found = self._metadata.state.security.users.get(user)
        decoy = self._decoys.plain(user)
        return first_credential(found) if found else decoy

    def token_owner(self, token_id: str) -> Authenticated:
        token = self._metadata.state.security.tokens.get(token_id)
        if token is None or token.expires_ms <= self.now_ms():
            raise AuthenticationFailed(INVALID_CREDENTIALS)
        return Authenticated(token.owner, token.expires_ms, by_token=True)

    async def fits(self, credential: Credential, password: str, host: str, user: str) -> bool:
        """Whether a user's password from this address is right; Crowded if it is refused unchecked."""
        return await self._hashing.run(host, password_fits, credential, password, user=user)

    async def check_token(self, token: str, host: str) -> Authenticated:
        """The principal of a JWT from this address; Crowded if it is refused unchecked."""
        if self.keys is None:
            raise AuthenticationFailed("no keys for tokens are set here")
        return await self.keys.check(token, self.now_ms() / 1000, partial(self._checking.run, host))

    def access(self, principal: str, host: str) -> Access:
        return EVERYTHING if self.authorizer is None else self.authorizer.access(principal, host)


class Session:
    """A connection's login. `needed` says whether anything is served without one."""

    def __init__(
        self,
        authenticator: Authenticator,
        host: str,
        *,
        needed: bool,
        principal: str,
        takes_nodes: bool = False,
        channel: bytes = b"",
    ) -> None:
        """`channel` is the digest of the certificate that the client was shown."""
        self._channel = channel
        self._authenticator = authenticator
        self._takes_nodes = takes_nodes
        self.host = host
        self.needed = needed
        self.principal = principal
        self.is_authenticated = not needed
        self.by_token = False
        self.expires_ms: int | None = None
        self.access = authenticator.access(principal, host)
        self._holds: Callable[[], bool] | None = None
        self.mechanism: str | None = None
        self.failed = False
        """The login failed: the connection is closed after the answer, and serves no further request."""
        self.expects_bare = False
        """The client sends its next messages without Kafka's header (SaslHandshake version 0)."""
        self._requests = 0
        """Since the login began."""
        self._is_busy = False
        self._scram: ScramServer | None = None
        self._who: Callable[[], Authenticated] | None = None
        self._claimed: str | None = None
        """The user that the client claims to be."""
        self._refused: str | None = None
        """Why the client's token was refused, which it is told with the next answer (RFC 7628)."""

    def serves(self, api_key: ApiKey | None) -> bool:
        """Whether a request may be answered now; None stands for any that needs a login."""
        if api_key is not None and api_key in BEFORE_LOGIN:
            return not self.failed
        if not self.is_authenticated or self.failed:
            return False
        return self.expires_ms is None or self._authenticator.now_ms() < self.expires_ms

    def count_request(self) -> None:
        """One more of a client that is not logged in; PeerError if there were too many."""
        self._requests += 1
        if self._requests > REQUESTS_MAX:
            raise PeerError(f"{REQUESTS_MAX} requests and no login")

    @property
    def has_ended(self) -> bool:
        """Whether what this login was believed for is no more: a node's registration. Asked when nodes come
        and go, not with each request."""
        return self._holds is not None and not self._holds()

    async def handshake(self, mechanism: str) -> ErrorCode:
        if self.failed:
            return ErrorCode.illegal_sasl_state
        if self.mechanism is not None:
            # As in Apache Kafka. Otherwise a guess could be dropped before it counts as a failure.
            self.failed = True
            await self._punish("SaslHandshake amid a login")
            return ErrorCode.illegal_sasl_state
        offered = (*self.offered, NODE_MECHANISM) if self._takes_nodes else self.offered
        if not self.needed and mechanism not in offered:
            return ErrorCode.illegal_sasl_state
        if mechanism not in offered:
            return ErrorCode.unsupported_sasl_mechanism
        self.mechanism = mechanism
        return ErrorCode.none

    @property
    def _room(self) -> str:
        """The key under which failures of this login count. Nodes have one of their own, so that users who
        fail do not delay nodes on the same machine."""
        return f"{self.host} as a node" if self.mechanism == NODE_MECHANISM else self.host

    async def _punish(self, why: str) -> None:
        await self._authenticator.failures.punish(self.host, why, user=self._claimed, room=self._room)

    @property
    def offered(self) -> tuple[str, ...]:
        return self._authenticator.mechanisms if self.needed else ()

    async def authenticate(self, message: bytes) -> AuthReply:
        if self.mechanism is None or self._is_busy:
            self.failed = True
            return AuthReply(ErrorCode.illegal_sasl_state, "SaslHandshake comes first", b"")
        if self._refused is not None:
            self.failed = True
            return AuthReply(ErrorCode.sasl_authentication_failed, self._refused, b"")
        self._is_busy = True
        try:
            data, found = await self._step(self.mechanism, message)
        except AuthenticationFailed as error:
            self.failed = True
            return AuthReply(ErrorCode.sasl_authentication_failed, await self._hold_back(error), b"")
        finally:
            self._is_busy = False
        if found is None:
            return AuthReply(ErrorCode.none, None, data)
        return self._log_in(data, found)

    async def _hold_back(self, error: AuthenticationFailed) -> str:
        """Delay the answer to a failed login; returns its text."""
        if isinstance(error, Crowded):
            await asyncio.sleep(UNSEEN_SECONDS)
            return str(error)
        if self.mechanism == NODE_MECHANISM or self._claimed is None:  # nobody has asked for room yet
            try:
                self._authenticator.failures.require_room(self._room)
            except Crowded as crowded:
                # The password was checked, so this waits as long as any wrong guess: guessing more at once
                # gains nothing.
                await asyncio.sleep(DELAY_SECONDS_MAX)
                return str(crowded)
        await self._punish(str(error))
        return str(error)

    def _log_in(self, data: bytes, found: Authenticated) -> AuthReply:
        if self.needed and self.is_authenticated and found.principal != self.principal:
            self.failed = True
            message = "somebody else logged in on this connection"
            return AuthReply(ErrorCode.sasl_authentication_failed, message, b"")
        now_ms = self._authenticator.now_ms()
        ends = [found.expires_ms] if found.expires_ms is not None else []
        if self._authenticator.reauth_ms and not found.principal.startswith((NODE_PREFIX, QUERY, HTTP)):
            ends.append(now_ms + self._authenticator.reauth_ms)
        self.expires_ms = min(ends) if ends else None
        self.principal, self.by_token = found.principal, found.by_token
        self._holds = found.holds
        self.is_authenticated = True
        self.access = self._authenticator.access(found.principal, self.host)
        if self._claimed is not None:
            self._authenticator.failures.forgive(self._room, self._claimed)
        self.mechanism = self._claimed = None
        self.expects_bare = False
        self._requests = 0
        lifetime = 0 if self.expires_ms is None else max(1, self.expires_ms - now_ms)
        return AuthReply(ErrorCode.none, None, data, lifetime)

    async def _step(self, mechanism: str, message: bytes) -> tuple[bytes, Authenticated | None]:
        if len(message) > MESSAGE_BYTES_MAX:
            raise AuthenticationFailed("the message is too long")
        if mechanism == "PLAIN":
            return b"", await self._plain(message)
        if mechanism == "OAUTHBEARER":
            return await self._oauth(message)
        return await self._scram_step(mechanism, message)

    def _require_room(self) -> None:
        self._authenticator.failures.require_room(self._room, self._claimed)

    async def _plain(self, message: bytes) -> Authenticated:
        login = plain.read_message(message)
        self._claimed = login.user
        self._require_room()
        credential = self._authenticator.plain_credential(login.user)
        if not await self._authenticator.fits(credential, login.password, self.host, login.user):
            raise AuthenticationFailed("Authentication failed: Invalid username or password")
        return Authenticated(user_principal(login.user))

    async def _oauth(self, message: bytes) -> tuple[bytes, Authenticated | None]:
        self._require_room()
        authenticator, token = self._authenticator, oauth.read_message(message)
        try:
            found = await authenticator.check_token(token, self.host)
        except Crowded:
            raise
        except AuthenticationFailed as error:
            # Counted now: who guesses need not wait for the answer that ends the exchange.
            self._refused = str(error)
            await self._punish(self._refused)
            return oauth.refusal(), None
        return b"", found

    async def _scram_step(self, mechanism: str, message: bytes) -> tuple[bytes, Authenticated | None]:
        authenticator = self._authenticator
        is_node = mechanism == NODE_MECHANISM
        kind = MECHANISMS["SCRAM-SHA-256" if is_node else mechanism]
        if self._scram is None:
            scram = ScramServer(kind, secrets.token_urlsafe(18), channel=self._channel)
            first = scram.first(message)
            self._claimed = first.user
            if is_node:
                # Anybody at a node's address may claim to be a node, so room is only asked for after a
                # failure.
                self._who = lambda: authenticator.own_client(first.user, scram)
                credentials = await authenticator.own_credentials(first.user)
            else:
                self._require_room()
                self._who = (
                    (lambda: authenticator.token_owner(first.user))
                    if first.by_token
                    else (lambda: Authenticated(user_principal(first.user)))
                )
                found = await authenticator.credential(kind, first.user, self.host, by_token=first.by_token)
                credentials = (found,)
            self._scram = scram
            return scram.challenge(*credentials), None
        if not is_node:
            self._require_room()
        scram, self._scram = self._scram, None
        answer = scram.final(message)
        assert self._who is not None
        return answer, self._who()
