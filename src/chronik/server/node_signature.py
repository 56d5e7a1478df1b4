"""How nodes prove to each other over HTTP who asks: a MAC over the whole request, good once and not for long.

`Authorization: Chronik-Node ID TIME-MS NONCE DIGEST SIGNATURE MAC`. The MAC's key comes from the cluster's
secret, which it does not reveal; DIGEST is the body's, so that nobody between two nodes can put another one
in its place. SIGNATURE is by the node's own key, so that the secret alone cannot pass for a registered node;
`-` by a node without a key.

The MAC covers that, the receiver, the method, and path and query as they were sent. None is taken twice. A
node does not know what it took before it was started: it believes nothing older. A peer whose clock is behind
is therefore refused for that long after each start: by its time alone, what it sends now cannot be told from
what somebody sends again. Its signature is right, so it is told why, and it is no failed login.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from base64 import b64decode, b64encode
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from chronik.model import NodeId
from chronik.security.warrants import is_signed_by

__all__ = ["SCHEME", "NodeSignature", "NotInTime", "Signed"]

SCHEME: Final = "chronik-node"
AGE_MS_MAX: Final = 60_000
"""How far the clocks of two nodes may be apart."""
SEEN_MAX: Final = 50_000
"""Signatures that are remembered, so that none is taken twice."""


class NotInTime(Exception):
    """A node signed this, but at a time by its clock that is not believed."""


class Signed(NamedTuple):
    node_id: NodeId
    digest: str

    def fits(self, body: bytes) -> bool:
        return hmac.compare_digest(self.digest.encode(), hashlib.sha256(body).hexdigest().encode())


class NodeSignature:
    def __init__(
        self,
        shared: Sequence[str],
        node_id: NodeId,
        now_ms: Callable[[], int],
        *,
        sign: Callable[[bytes], bytes] | None = None,
        registered_key: Callable[[NodeId], bytes | None] = lambda _node_id: None,
    ) -> None:
        """`shared` are the cluster's secrets: the first signs, all are believed. `sign` is by this node's own
        key, `registered_key` tells the public key of another node."""
        self._sign = sign
        self._registered_key = registered_key
        self._keys = [hmac.digest(one.encode(), b"chronik HTTP between nodes", "sha256") for one in shared]
        self._node_id = node_id
        self._now_ms = now_ms
        self._started_ms = now_ms()
        self._seen: OrderedDict[str, None] = OrderedDict()

    def header(self, to: NodeId, method: str, target: str, body: bytes) -> str:
        """`target` is the path and, after a question mark, the query."""
        head = f"{self._node_id} {self._now_ms()} {secrets.token_hex(8)} {hashlib.sha256(body).hexdigest()}"
        signature = b"-" if self._sign is None else b64encode(self._sign(_to_sign(head, to, method, target)))
        head = f"{head} {signature.decode()}"
        return f"Chronik-Node {head} {_mac(self._keys[0], head, to, method, target)}"

    def check(self, given: str, method: str, target: str) -> Signed | None:
        """Who signed a request to this node, or None if nobody did who could; NotInTime if one did too early
        or too late."""
        head, _, mac = given.rpartition(" ")
        expected = [_mac(key, head, self._node_id, method, target) for key in self._keys]
        if not any(hmac.compare_digest(mac.encode(), one.encode()) for one in expected):
            return None
        node_id, sent_ms, _nonce, digest, signature = head.split(" ")
        key = self._registered_key(int(node_id))
        text = _to_sign(head.rpartition(" ")[0], self._node_id, method, target)
        if key is not None and not is_signed_by(key, _decoded(signature), text):
            return None
        if mac in self._seen:
            return None
        ahead_ms = int(sent_ms) - self._now_ms()
        if int(sent_ms) < self._started_ms or abs(ahead_ms) > AGE_MS_MAX:
            raise NotInTime(f"node {node_id} signed this {ahead_ms / 1000:+.1f} s from now by its clock")
        self._seen[mac] = None
        if len(self._seen) > SEEN_MAX:
            self._seen.popitem(last=False)
        return Signed(int(node_id), digest)


def _decoded(signature: str) -> bytes:
    try:
        return b64decode(signature, validate=True)
    except ValueError:
        return b""


def _to_sign(head: str, to: NodeId, method: str, target: str) -> bytes:
    return f"chronik HTTP between nodes\n{head}\n{to}\n{method}\n{target}".encode()


def _mac(key: bytes, head: str, to: NodeId, method: str, target: str) -> str:
    return hmac.digest(key, f"{head}\n{to}\n{method}\n{target}".encode(), "sha256").hex()
