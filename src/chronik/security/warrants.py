"""Keys of the nodes' own clients, and the warrants by which nodes vouch for them. Pure.

HTTP ports and query processes are Kafka clients of the whole cluster, and none of them is a node. Each gets a
key of its own and a warrant: the node's signature under "this key is my `user`, since my registration
`epoch`". Any broker can check both, since it knows the public keys of all registered nodes; nothing secret is
shared between nodes for it.

A warrant of an earlier registration is void, so what leaks from a process ends with its node's next start.
One of a later registration than the broker has heard of is good: only the node itself could sign it.
"""

from __future__ import annotations

from typing import Final

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from chronik.model import NodeId
from chronik.security.exchange import AuthenticationFailed
from chronik.security.scram import Sign

__all__ = ["ClientKey", "Warrant", "is_signed_by", "issue", "read_warrant"]

WARRANT_BYTES_MAX: Final = 512


class Warrant(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    node_id: NodeId
    user: str
    """The name that the client logs in with."""
    epoch: int
    """The node's broker epoch: the place of its registration in the metadata log."""
    public_key: bytes
    signature: bytes = b""
    """Made with the node's key."""

    @property
    def signed(self) -> bytes:
        stated = msgspec.msgpack.encode((self.node_id, self.user, self.epoch, self.public_key))
        return b"chronik warrant\n" + stated

    def is_issued_by(self, node_key: bytes) -> bool:
        return is_signed_by(node_key, self.signature, self.signed)


class ClientKey:
    """The key of one client process, made of 32 random bytes."""

    def __init__(self, seed: bytes) -> None:
        self._private = Ed25519PrivateKey.from_private_bytes(seed)
        self.public = self._private.public_key().public_bytes_raw()

    def sign(self, data: bytes) -> bytes:
        return self._private.sign(data)


def issue(node_id: NodeId, user: str, epoch: int, public_key: bytes, sign: Sign) -> bytes:
    """A warrant as it goes over the wire; `sign` is by the node's key."""
    stated = Warrant(node_id, user, epoch, public_key)
    return msgspec.msgpack.encode(msgspec.structs.replace(stated, signature=sign(stated.signed)))


def read_warrant(data: bytes) -> Warrant:
    """AuthenticationFailed if it is malformed. The caller still has to verify it."""
    try:
        if len(data) > WARRANT_BYTES_MAX:
            raise ValueError
        return msgspec.msgpack.decode(data, type=Warrant)
    except ValueError:  # of msgspec too
        raise AuthenticationFailed("a warrant is malformed") from None


def is_signed_by(public_key: bytes, signature: bytes, data: bytes) -> bool:
    try:
        Ed25519PublicKey.from_public_bytes(public_key).verify(signature, data)
    except (InvalidSignature, ValueError):
        return False
    return True
