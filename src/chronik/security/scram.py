"""SCRAM-SHA-256 and -512, both sides (RFC 5802, RFC 7677). Pure.

The server side never sees a password. In order:

    client-first   -> ScramServer.first()      who it wants to be
    server-first   <- ScramServer.challenge()  salt and iterations, of the credential the caller looked up
    client-final   -> ScramServer.final()      the proof, checked; the answer proves the server to the client

For a user that does not exist the caller hands in `decoy_credential`: the exchange looks the same and fails
at its end, so that nobody learns which users there are. Channel binding is not offered, as in Kafka.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

import msgspec

from chronik.model import NAME_BYTES_MAX, Int32, check_name_bytes
from chronik.security.exchange import AuthenticationFailed

__all__ = [
    "INVALID_CREDENTIALS",
    "ITERATIONS_DEFAULT",
    "ITERATIONS_MAX",
    "ITERATIONS_MIN",
    "MECHANISMS",
    "SALT_BYTES",
    "SALT_BYTES_MAX",
    "Credential",
    "Mechanism",
    "ScramClient",
    "ScramFirst",
    "ScramServer",
    "Sign",
    "check_credential",
    "credential_from_salted",
    "decoy_credential",
    "make_credential",
    "password_fits",
    "salted_password",
]

Sign: TypeAlias = Callable[[bytes], bytes]
ITERATIONS_MIN: Final = 4096
ITERATIONS_MAX: Final = 16384
ITERATIONS_DEFAULT: Final = 8192
SALT_BYTES: Final = 32
SALT_BYTES_MAX: Final = 1024
"""A client that makes a user chooses the salt, and every node keeps it."""
INVALID_CREDENTIALS: Final = "Authentication failed during authentication due to invalid credentials"


@dataclass(frozen=True, slots=True)
class Mechanism:
    number: int
    """Kafka's ScramMechanism."""
    name: str
    hash: str


MECHANISMS: Final = {
    "SCRAM-SHA-256": Mechanism(1, "SCRAM-SHA-256", "sha256"),
    "SCRAM-SHA-512": Mechanism(2, "SCRAM-SHA-512", "sha512"),
}


class Credential(msgspec.Struct, frozen=True, kw_only=True):
    """What is kept of a password: enough to check a proof, not enough to make one."""

    mechanism: str
    salt: bytes
    iterations: Int32
    stored_key: bytes
    server_key: bytes

    def __repr__(self) -> str:
        return f"Credential({self.mechanism}, {self.iterations} iterations)"


def check_credential(user: str, salt: bytes) -> None:
    """ValueError if every node would have to keep too much of this user."""
    check_name_bytes("a user's name", user)
    if len(salt) > SALT_BYTES_MAX:
        raise ValueError(f"a salt has at most {SALT_BYTES_MAX} bytes")


@dataclass(frozen=True, slots=True)
class ScramFirst:
    user: str
    """A user's name, or the id of a delegation token."""
    by_token: bool


def _hmac(mechanism: Mechanism, key: bytes, message: bytes) -> bytes:
    return hmac.digest(key, message, mechanism.hash)


def salted_password(mechanism: Mechanism, password: str, salt: bytes, iterations: int) -> bytes:
    """Hi() of the RFC: slow on purpose, so never on an event loop."""
    return hashlib.pbkdf2_hmac(mechanism.hash, password.encode(), salt, iterations)


def credential_from_salted(mechanism: Mechanism, salted: bytes, salt: bytes, iterations: int) -> Credential:
    client_key = _hmac(mechanism, salted, b"Client Key")
    return Credential(
        mechanism=mechanism.name,
        salt=salt,
        iterations=iterations,
        stored_key=hashlib.new(mechanism.hash, client_key).digest(),
        server_key=_hmac(mechanism, salted, b"Server Key"),
    )


def make_credential(mechanism: Mechanism, password: str, salt: bytes, iterations: int) -> Credential:
    return credential_from_salted(
        mechanism, salted_password(mechanism, password, salt, iterations), salt, iterations
    )


def decoy_credential(
    mechanism: Mechanism, user: str, secret: bytes, salt: bytes, iterations: int
) -> Credential:
    """A credential for a user that does not exist: no password fits it."""
    size = hashlib.new(mechanism.hash).digest_size
    key = hmac.digest(secret, b"key:" + user.encode(), "sha512")[:size]
    return Credential(
        mechanism=mechanism.name, salt=salt, iterations=iterations, stored_key=key, server_key=key
    )


def password_fits(credential: Credential, password: str) -> bool:
    """Whether a password sent in the clear (PLAIN) is the credential's. Slow on purpose."""
    mechanism = MECHANISMS[credential.mechanism]
    made = make_credential(mechanism, password, credential.salt, credential.iterations)
    return hmac.compare_digest(made.stored_key, credential.stored_key)


class ScramServer:
    def __init__(self, mechanism: Mechanism, nonce: str, *, channel: bytes = b"") -> None:
        """`nonce` is new for each exchange, and printable without a comma. `channel` is the digest of the
        certificate that the client was shown; empty without TLS."""
        self._channel = channel
        self._mechanism = mechanism
        self._nonce = nonce
        self._client_first_bare = ""
        self._gs2_header = ""
        self._server_first = ""
        self._credentials: tuple[Credential, ...] = ()
        self._signature = b""
        self.warrant = b""
        """The warrant that a node's client presented, not decoded; set by `final`."""

    def first(self, message: bytes) -> ScramFirst:
        text = _text(message)
        flag, _, rest = text.partition(",")
        authzid, comma, bare = rest.partition(",")
        if flag not in ("n", "y") or not comma or (authzid and not authzid.startswith("a=")):
            raise AuthenticationFailed("the first SCRAM message is malformed")
        self._gs2_header = f"{flag},{authzid},"
        self._client_first_bare = bare
        fields = bare.split(",")
        if len(fields) < 2 or not fields[0].startswith("n=") or not fields[1].startswith("r="):
            raise AuthenticationFailed("the first SCRAM message names no user or no nonce")
        extensions = dict(_pair(field) for field in fields[2:])
        if "m" in extensions:
            raise AuthenticationFailed("a mandatory SCRAM extension is not known here")
        user = _unescape(fields[0][2:])
        if authzid and _unescape(authzid[2:]) != user:
            raise AuthenticationFailed("nobody may log in for somebody else")
        client_nonce = fields[1][2:]
        if not user or not client_nonce or len(user.encode()) > NAME_BYTES_MAX:
            raise AuthenticationFailed("the first SCRAM message names no user or no nonce")
        self._nonce = client_nonce + self._nonce
        return ScramFirst(user, extensions.get("tokenauth", "").lower() == "true")

    def challenge(self, credential: Credential, *others: Credential) -> bytes:
        """`others` are believed as well; they have the same salt and iterations."""
        self._credentials = (credential, *others)
        salt = base64.b64encode(credential.salt).decode()
        self._server_first = f"r={self._nonce},s={salt},i={credential.iterations}"
        return self._server_first.encode()

    def final(self, message: bytes) -> bytes:
        """The answer if the proof is right; AuthenticationFailed if not."""
        text = _text(message)
        if not self._credentials:
            raise AuthenticationFailed("the SCRAM messages came out of order")
        without_proof, _, proof_text = text.rpartition(",p=")
        fields = without_proof.split(",")
        if len(fields) < 2 or not fields[0].startswith("c=") or not fields[1].startswith("r="):
            raise AuthenticationFailed("the last SCRAM message is malformed")
        if _decoded(fields[0][2:]) != self._gs2_header.encode():
            raise AuthenticationFailed("the SCRAM messages do not belong together")
        if not hmac.compare_digest(fields[1][2:].encode(), self._nonce.encode()):
            raise AuthenticationFailed("the nonce is not of this exchange")
        signed = f"{self._client_first_bare},{self._server_first},{without_proof}".encode()
        self._signature = b"".join(_decoded(one[2:]) for one in fields[2:] if one.startswith("k="))
        self.warrant = b"".join(_decoded(one[2:]) for one in fields[2:] if one.startswith("w="))
        proof = _decoded(proof_text)
        for credential in self._credentials:
            if self._fits(credential, signed, proof):
                answer = _hmac(self._mechanism, credential.server_key, signed)
                return b"v=" + base64.b64encode(answer)
        raise AuthenticationFailed(INVALID_CREDENTIALS)

    def is_signed(self, fits: Callable[[bytes, bytes], bool]) -> bool:
        """Whether the last message carried a signature that fits what a node signs; asked after `final`."""
        return fits(self._signature, _to_sign(self._channel, self._client_first_bare, self._server_first))

    def _fits(self, credential: Credential, signed: bytes, proof: bytes) -> bool:
        signature = _hmac(self._mechanism, credential.stored_key, signed)
        if len(proof) != len(signature):
            return False
        key = bytes(one ^ other for one, other in zip(proof, signature, strict=True))
        stored = hashlib.new(self._mechanism.hash, key).digest()
        return hmac.compare_digest(stored, credential.stored_key)


class ScramClient:
    def __init__(
        self,
        mechanism: Mechanism,
        user: str,
        password: str,
        nonce: str,
        *,
        by_token: bool = False,
        sign: Sign | None = None,
        warrant: bytes = b"",
        channel: bytes = b"",
    ) -> None:
        """`sign` is a node's or its client's: it proves its own key beside the password that all nodes have.
        `warrant` says whose client's key that is, `channel` which certificate the server has shown."""
        self._channel = channel
        self._mechanism = mechanism
        self._password = password
        self._sign = sign
        self._warrant = warrant
        self._nonce = nonce
        extension = ",tokenauth=true" if by_token else ""
        self._first_bare = f"n={_escape(user)},r={nonce}{extension}"
        self._server_signature = b""

    def first(self) -> bytes:
        return f"n,,{self._first_bare}".encode()

    def final(self, challenge: bytes) -> bytes:
        """The proof. Computes the salted password, which is slow on purpose."""
        text = _text(challenge)
        fields = dict(_pair(field) for field in text.split(","))
        if "e" in fields:
            raise AuthenticationFailed(f"the server refuses: {fields['e']}")
        nonce, iterations = fields.get("r", ""), fields.get("i", "")
        if not nonce.startswith(self._nonce) or len(nonce) <= len(self._nonce):
            raise AuthenticationFailed("the server's nonce does not continue this client's")
        if not iterations.isdecimal() or not ITERATIONS_MIN <= int(iterations[:9]) <= 1_000_000:
            raise AuthenticationFailed(f"the server asks for {iterations[:9]} iterations")
        salt = _decoded(fields.get("s", ""))
        salted = salted_password(self._mechanism, self._password, salt, int(iterations))
        client_key = _hmac(self._mechanism, salted, b"Client Key")
        stored_key = hashlib.new(self._mechanism.hash, client_key).digest()
        without_proof = f"c={base64.b64encode(b'n,,').decode()},r={nonce}"
        if self._sign is not None:
            signature = self._sign(_to_sign(self._channel, self._first_bare, text))
            without_proof += f",k={base64.b64encode(signature).decode()}"
        if self._warrant:
            without_proof += f",w={base64.b64encode(self._warrant).decode()}"
        signed = f"{self._first_bare},{text},{without_proof}".encode()
        signature = _hmac(self._mechanism, stored_key, signed)
        proof = bytes(one ^ other for one, other in zip(client_key, signature, strict=True))
        server_key = _hmac(self._mechanism, salted, b"Server Key")
        self._server_signature = _hmac(self._mechanism, server_key, signed)
        return f"{without_proof},p={base64.b64encode(proof).decode()}".encode()

    def check(self, answer: bytes) -> None:
        """Whether the server knows the password too: a stranger in its place does not."""
        fields = dict(_pair(field) for field in _text(answer).split(","))
        if "e" in fields:
            raise AuthenticationFailed(f"the server refuses: {fields['e']}")
        if not self._server_signature or not hmac.compare_digest(
            _decoded(fields.get("v", "")), self._server_signature
        ):
            raise AuthenticationFailed("the server did not prove that it knows the credential")


def _to_sign(channel: bytes, client_first_bare: str, server_first: str) -> bytes:
    """What a node signs: both nonces and its name are in it, so that it serves this exchange alone.

    Under TLS also the digest of the server's certificate (tls-server-end-point of RFC 5929, by SHA-256), so
    that nobody between with another certificate, believed or not, can hand the login on.
    """
    over = f" over {channel.hex()}" if channel else ""
    return f"chronik node login{over}\n{client_first_bare},{server_first}".encode()


def _text(message: bytes) -> str:
    try:
        return message.decode()
    except UnicodeDecodeError:
        raise AuthenticationFailed("a SCRAM message is not UTF-8") from None


def _pair(field: str) -> tuple[str, str]:
    key, equals, value = field.partition("=")
    if not key or not equals:
        raise AuthenticationFailed("a SCRAM message is malformed")
    return key, value


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise AuthenticationFailed("a SCRAM message is malformed") from None


def _escape(name: str) -> str:
    return name.replace("=", "=3D").replace(",", "=2C")


def _unescape(name: str) -> str:
    if name.replace("=2C", "").replace("=3D", "").find("=") >= 0:
        raise AuthenticationFailed("a user name is not escaped as SCRAM wants it")
    return name.replace("=2C", ",").replace("=3D", "=")
