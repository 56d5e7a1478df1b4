"""How two nodes prove to each other who they are when a connection opens. Messages in, messages out.

The dialer says who it is and whom it looks for (Hello). The acceptor answers with a proof (Challenge), the
dialer with its own (Proof), and the acceptor lets it in (Welcome). Every proof covers everything said so
far, both nonces among it, so what was recorded proves nothing to anybody else or later.

A cluster with a secret asks for two things:

- that the peer knows the secret: an HMAC over the transcript. A node proves the first of its secrets and
  believes any, so that one can replace another node by node;
- that it is the node it says it is: a signature with the node's own key, whose public half the cluster has
  known since that node registered. The secret alone lets a new node in, but nobody pass for a known one.

Without TLS the nonces are X25519 keys, and the keys of the frames' seals come from their shared secret: who
learns the cluster's secret later, or listens and knows it, still cannot change what is sent.
With TLS the certificate says which node this is (`certificates`), and TLS protects the frames.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable
from typing import Final, NamedTuple, TypeAlias

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

from chronik.links.certificates import NodeTls
from chronik.links.seal import Seal
from chronik.model import NodeId, PeerError
from chronik.security.warrants import is_signed_by

PROTOCOL: Final = "chronik-link-2"
NONCE_BYTES: Final = 32
_HINT_BYTES: Final = 8
_ACCEPTOR: Final = b"acceptor"
_DIALER: Final = b"dialer"
NO_SECRET: Final = b""


class Hello(msgspec.Struct, frozen=True, tag="hello"):
    """The dialer's first frame."""

    protocol: str
    node_id: NodeId
    """Who dials."""
    to: NodeId
    """Whom it wants to reach."""
    purpose: str
    """What the link carries: `data`, `metadata` or `raft`."""
    nonce: bytes
    """32 random bytes; without TLS, a new X25519 public key."""
    secret: bytes = b""
    """Tells which secret is meant, and nothing about it."""
    public_key: bytes = b""
    """The node's own Ed25519 key, if it has one."""


class Challenge(msgspec.Struct, frozen=True, tag="challenge"):
    """The acceptor's answer. Nonce, proof and keys are its own."""

    node_id: NodeId
    nonce: bytes
    proof: bytes
    public_key: bytes = b""
    signature: bytes = b""


class Proof(msgspec.Struct, frozen=True, tag="proof"):
    """The dialer's answer to that."""

    proof: bytes
    signature: bytes = b""


class Welcome(msgspec.Struct, frozen=True, tag="welcome"):
    """The acceptor has checked the proof: the dialer may send frames."""


Message: TypeAlias = Hello | Challenge | Proof | Welcome


class NodeKey:
    """A node's own key. It never leaves the node; the cluster knows its public half."""

    def __init__(self, seed: bytes) -> None:
        self._private = Ed25519PrivateKey.from_private_bytes(seed)
        self.public = self._private.public_key().public_bytes_raw()

    def sign(self, data: bytes) -> bytes:
        return self._private.sign(data)


class LinkIdentity(msgspec.Struct, frozen=True):
    """How this node identifies itself to its peers."""

    node_id: NodeId
    secrets: tuple[bytes, ...]
    """The first is the one that this node proves; all are accepted from peers. `NO_SECRET` proves and demands
    nothing."""
    random_bytes: Callable[[int], bytes]
    key: NodeKey | None = None
    registered_key: Callable[[NodeId], bytes | None] = lambda _node_id: None
    """The public key of a node, if the cluster knows one."""
    tls: NodeTls | None = None


class ProvenPeer(NamedTuple):
    """The peer that has proven who it is, and the seals of both directions, if frames are sealed."""

    node_id: NodeId
    purpose: str
    sealing: Seal | None
    opening: Seal | None


def _hint(secret: bytes) -> bytes:
    return hmac.digest(secret, b"chronik link: which secret", "sha256")[:_HINT_BYTES] if secret else b""


class Handshake:
    """One end's side of it. The dialer begins with `hello`."""

    def __init__(
        self,
        identity: LinkIdentity,
        *,
        dial: tuple[NodeId, str] | None = None,
        certified: NodeId | None = None,
    ) -> None:
        """`dial` is the node and the purpose at the dialer; `certified` the node of the peer's certificate,
        where there is TLS."""
        self._identity = identity
        self._dial = dial
        self._certified = certified
        self._hello: Hello | None = None
        self._challenge: Challenge | None = None
        self._secret = identity.secrets[0]
        self._ephemeral: X25519PrivateKey | None = None
        self.peer: ProvenPeer | None = None
        """Known once it has proven who it is."""
        self.is_done = False

    # --- saying ---

    def hello(self) -> Hello:
        assert self._dial is not None
        node_id, purpose = self._dial
        own = self._identity
        nonce = self._new_nonce()
        self._hello = Hello(
            PROTOCOL, own.node_id, node_id, purpose, nonce, _hint(self._secret), self._public_key()
        )
        return self._hello

    def received(self, frame: memoryview) -> Message | None:
        """Take what the peer said; what to answer, if anything. PeerError ends it."""
        try:
            message = msgspec.msgpack.decode(frame, type=Message)
        except ValueError as error:  # UnicodeDecodeError is no DecodeError
            raise PeerError("not a node of this cluster: the handshake is malformed") from error
        is_dialer = self._dial is not None
        match message:
            case Hello() if not is_dialer and self._hello is None:
                return self._on_hello(message)
            case Challenge() if is_dialer and self._challenge is None:
                return self._on_challenge(message)
            case Proof() if not is_dialer and self._challenge is not None:
                return self._on_proof(message)
            case Welcome() if is_dialer and self.peer is not None:
                self.is_done = True
                return None
            case _:
                raise PeerError("handshake messages out of order")

    # --- hearing ---

    def _on_hello(self, hello: Hello) -> Challenge:
        own = self._identity
        if hello.protocol != PROTOCOL:
            raise PeerError(
                f"node {hello.node_id} speaks {hello.protocol[:40]!r} and this node {PROTOCOL!r}: "
                "run the same release on both"
            )
        if hello.to != own.node_id or hello.node_id == own.node_id:
            raise PeerError(f"node {hello.node_id} looks for node {hello.to}, this is {own.node_id}")
        if len(hello.nonce) != NONCE_BYTES or not 0 <= hello.node_id < 2**31:
            raise PeerError("a nonce of the wrong size")
        self._check_certificate(hello.node_id)
        known = {_hint(secret): secret for secret in own.secrets}
        if hello.secret not in known:
            raise PeerError(f"node {hello.node_id} does not know this cluster's secret")
        self._secret = known[hello.secret]
        self._check_key(hello.node_id, hello.public_key)
        self._hello = hello
        said = Challenge(own.node_id, self._new_nonce(), b"", self._public_key())
        proof, signature = self._prove(_ACCEPTOR, said)
        self._challenge = msgspec.structs.replace(said, proof=proof, signature=signature)
        return self._challenge

    def _on_challenge(self, challenge: Challenge) -> Proof:
        assert self._hello is not None
        if challenge.node_id != self._hello.to:
            raise PeerError(f"node {challenge.node_id} answers where node {self._hello.to} should be")
        if len(challenge.nonce) != NONCE_BYTES:
            raise PeerError("a nonce of the wrong size")
        self._check_certificate(challenge.node_id)
        self._check_key(challenge.node_id, challenge.public_key)
        self._challenge = challenge
        self._check(_ACCEPTOR, challenge.node_id, challenge.proof, challenge.public_key, challenge.signature)
        self.peer = self._met(challenge.node_id, challenge.nonce)
        return Proof(*self._prove(_DIALER, challenge))

    def _on_proof(self, proof: Proof) -> Welcome:
        hello = self._hello
        assert hello is not None
        if self.peer is not None:
            raise PeerError("handshake messages out of order")
        self._check(_DIALER, hello.node_id, proof.proof, hello.public_key, proof.signature)
        self.peer = self._met(hello.node_id, hello.nonce)
        self.is_done = True
        return Welcome()

    # --- proofs ---

    @property
    def _is_signed(self) -> bool:
        """Whether nodes prove who they are by their own keys. A certificate does it by itself."""
        return bool(self._secret) and self._certified is None

    def _new_nonce(self) -> bytes:
        drawn = self._identity.random_bytes(NONCE_BYTES)
        if not self._is_signed:
            return drawn
        self._ephemeral = X25519PrivateKey.from_private_bytes(drawn)
        return self._ephemeral.public_key().public_bytes_raw()

    def _public_key(self) -> bytes:
        key = self._identity.key
        return key.public if key is not None and self._is_signed else b""

    def _transcript(self, role: bytes, challenge: Challenge) -> bytes:
        said = (role, self._hello, challenge.node_id, challenge.nonce, challenge.public_key)
        return msgspec.msgpack.encode(said)

    def _prove(self, role: bytes, challenge: Challenge) -> tuple[bytes, bytes]:
        transcript = self._transcript(role, challenge)
        key = self._identity.key
        signature = key.sign(transcript) if key is not None and self._is_signed else b""
        return hmac.digest(self._secret, transcript, hashlib.sha256), signature

    def _check(self, role: bytes, node_id: NodeId, proof: bytes, public_key: bytes, signature: bytes) -> None:
        assert self._challenge is not None
        transcript = self._transcript(role, self._challenge)
        if not hmac.compare_digest(hmac.digest(self._secret, transcript, hashlib.sha256), proof):
            raise PeerError(f"node {node_id} does not know this cluster's secret")
        if not self._is_signed or not public_key:
            return
        if not is_signed_by(public_key, signature, transcript):
            raise PeerError(f"node {node_id} does not have the key that it shows")

    def _check_key(self, node_id: NodeId, public_key: bytes) -> None:
        """A node that the cluster knows must show the key that it registered with."""
        registered = self._identity.registered_key(node_id) if self._is_signed else None
        if registered and registered != public_key:
            raise PeerError(
                f"somebody has the secret but not the key of node {node_id}: if its disk was replaced, take "
                "the node out with `chronik cluster remove-node --force` and let it in again with `add-node`"
            )

    def _check_certificate(self, node_id: NodeId) -> None:
        if self._certified is not None and self._certified != node_id:
            raise PeerError(f"the certificate of node {self._certified} does not prove node {node_id}")

    def _met(self, node_id: NodeId, nonce: bytes) -> ProvenPeer:
        assert self._hello is not None
        assert self._challenge is not None
        purpose = self._hello.purpose
        if self._ephemeral is None:
            return ProvenPeer(node_id, purpose, None, None)
        try:
            shared = self._ephemeral.exchange(X25519PublicKey.from_public_bytes(nonce))
        except ValueError:
            raise PeerError("a nonce that is no key") from None
        by_dialer, by_acceptor = (
            Seal(hmac.digest(self._secret, self._transcript(role, self._challenge) + shared, "sha512"))
            for role in (b"sealed by the dialer", b"sealed by the acceptor")
        )
        if self._dial is not None:
            return ProvenPeer(node_id, purpose, by_dialer, by_acceptor)
        return ProvenPeer(node_id, purpose, by_acceptor, by_dialer)
