"""Who gets past a handshake, and what happens to frames that somebody on the way touches (X05)."""

from __future__ import annotations

import random

import msgspec
import pytest

from chronik.links.handshake import NO_SECRET, Challenge, Handshake, Hello, LinkIdentity, NodeKey, ProvenPeer
from chronik.links.seal import TAG_BYTES, Seal
from chronik.model import PeerError

KEYS = {number: NodeKey(bytes([number]) * 32) for number in (1, 2, 3)}
DRAW = random.Random(1).randbytes


def node(
    node_id: int,
    *secrets: bytes,
    key: NodeKey | None = None,
    registered: tuple[int, ...] = (1, 2),
) -> LinkIdentity:
    """A node that knows the keys of the nodes in `registered`."""
    known = {number: KEYS[number].public for number in registered}
    return LinkIdentity(node_id, secrets or (b"secret",), DRAW, key or KEYS.get(node_id), known.get)


def encoded(message: object) -> memoryview:
    return memoryview(msgspec.msgpack.encode(message))


def meet(
    dialer: LinkIdentity,
    acceptor: LinkIdentity,
    *,
    to: int = 2,
    certified: tuple[int | None, int | None] = (None, None),
) -> tuple[ProvenPeer, ProvenPeer]:
    """Who the acceptor is to the dialer, and the other way round. `certified`: of their certificates."""
    near = Handshake(dialer, dial=(to, "data"), certified=certified[1])
    far = Handshake(acceptor, certified=certified[0])
    challenge = far.received(encoded(near.hello()))
    proof = near.received(encoded(challenge))
    welcome = far.received(encoded(proof))
    near.received(encoded(welcome))
    assert near.is_done
    assert far.is_done
    assert near.peer is not None
    assert far.peer is not None
    return near.peer, far.peer


def test_both_know_each_other_and_seal_what_they_send() -> None:
    near, far = meet(node(1), node(2))
    assert (near.node_id, far.node_id, far.purpose) == (2, 1, "data")
    assert near.sealing is not None
    assert far.opening is not None
    assert far.sealing is not None
    assert near.opening is not None
    for frame in (b"one", b"two" * 1000):
        assert far.opening.opened(memoryview(frame + near.sealing.tag(frame))) == frame
        assert near.opening.opened(memoryview(frame + far.sealing.tag(frame))) == frame


def test_without_a_secret_nothing_is_asked_and_nothing_sealed() -> None:
    near, far = meet(node(1, NO_SECRET, registered=()), node(2, NO_SECRET))
    assert (near.node_id, far.node_id) == (2, 1)
    assert near.sealing is near.opening is far.sealing is far.opening is None


def test_with_certificates_tls_does_the_sealing() -> None:
    near, far = meet(node(1), node(2), certified=(1, 2))
    assert near.sealing is far.sealing is None


@pytest.mark.parametrize(
    ("proven", "believed"),
    [
        ((b"old", b"new"), (b"old",)),
        ((b"old", b"new"), (b"new", b"old")),
        ((b"new", b"old"), (b"old", b"new")),
        ((b"new",), (b"new", b"old")),
        ((NO_SECRET, b"new"), (b"new", NO_SECRET)),
        ((b"new", NO_SECRET), (NO_SECRET, b"new")),
    ],
)
def test_neighbouring_steps_of_a_rotation_understand_each_other(
    proven: tuple[bytes, ...], believed: tuple[bytes, ...]
) -> None:
    meet(node(1, *proven), node(2, *believed))
    meet(node(2, *believed), node(1, *proven), to=1)


@pytest.mark.parametrize(
    ("dialer", "why"),
    [
        (node(1, b"guessed"), "does not know this cluster's secret"),
        (node(1, NO_SECRET), "does not know this cluster's secret"),
        (node(2), "looks for node 2"),
        (node(1, key=NodeKey(bytes(32))), "the secret but not the key of node 1"),
        (LinkIdentity(1, (b"secret",), DRAW), "the secret but not the key of node 1"),
    ],
)
def test_a_stranger_does_not_get_in(dialer: LinkIdentity, why: str) -> None:
    with pytest.raises(PeerError, match=why):
        meet(dialer, node(2))


def test_a_stranger_who_answers_in_a_nodes_place_is_not_believed() -> None:
    with pytest.raises(PeerError, match="not the key of node 2"):
        meet(node(1), node(2, key=NodeKey(bytes(32))))


def test_who_shows_another_nodes_key_cannot_use_it() -> None:
    near = Handshake(node(1), dial=(2, "data"))
    far = Handshake(node(2))
    challenge = far.received(encoded(near.hello()))
    proof = near.received(encoded(challenge))
    forged = msgspec.structs.replace(proof, signature=KEYS[3].sign(b"anything"))  # type: ignore[type-var]
    with pytest.raises(PeerError, match="does not have the key that it shows"):
        far.received(encoded(forged))


def test_a_new_node_needs_the_secret_alone() -> None:
    _, far = meet(node(3), node(2))
    assert far.node_id == 3


@pytest.mark.parametrize("certified", [(3, 2), (1, 3)])
def test_a_certificate_proves_one_node_only(certified: tuple[int, int]) -> None:
    with pytest.raises(PeerError, match="certificate of node 3"):
        meet(node(1), node(2), certified=certified)


def test_a_recorded_conversation_proves_nothing() -> None:
    near, far = Handshake(node(1), dial=(2, "data")), Handshake(node(2))
    hello = near.hello()
    proof = near.received(encoded(far.received(encoded(hello))))
    again = Handshake(node(2))
    again.received(encoded(hello))
    with pytest.raises(PeerError, match="does not know this cluster's secret"):
        again.received(encoded(proof))


@pytest.mark.parametrize("field", ["nonce", "purpose", "public_key"])
def test_nothing_of_a_hello_can_be_changed_on_its_way(field: str) -> None:
    near, far = Handshake(node(1, registered=()), dial=(2, "data")), Handshake(node(2, registered=()))
    hello = near.hello()
    value = {"nonce": bytes(31) + b"\x01", "purpose": "raft", "public_key": KEYS[3].public}[field]
    challenge = far.received(encoded(msgspec.structs.replace(hello, **{field: value})))
    with pytest.raises(PeerError, match="does not know this cluster's secret"):
        near.received(encoded(challenge))


@pytest.mark.parametrize("nonce", [bytes(32), b"\x01" + bytes(31)])
def test_a_nonce_that_is_no_key_ends_the_handshake(nonce: bytes) -> None:
    """X25519 keys of small order: the shared secret would be known to everybody."""
    near = Handshake(node(1), dial=(2, "data"))
    hello = near.hello()
    far = Handshake(node(2))
    far._hello = hello
    said = Challenge(2, nonce, b"", KEYS[2].public)
    proof, signature = far._prove(b"acceptor", said)
    with pytest.raises(PeerError, match="no key"):
        near.received(encoded(msgspec.structs.replace(said, proof=proof, signature=signature)))


@pytest.mark.parametrize("message", [Hello("x" * 50, 1, 2, "data", bytes(32)), Challenge(2, b"", b"")])
def test_what_makes_no_sense_ends_the_handshake(message: object) -> None:
    for shaking in (Handshake(node(2)), Handshake(node(1), dial=(2, "data"))):
        if shaking._dial:
            shaking.hello()
        with pytest.raises(PeerError):
            shaking.received(encoded(message))
    not_utf8 = bytes(encoded(Hello("x" * 5, 1, 2, "data", bytes(32)))).replace(b"xxxxx", b"xx\xffxx")
    for said in (b"\xc1", not_utf8):
        with pytest.raises(PeerError, match="malformed"):
            Handshake(node(2)).received(memoryview(said))


class TestSeal:
    frames = (b"first", b"second" * 5_000, b"third")

    def sealed(self) -> list[bytes]:
        seal = Seal(b"key")
        return [frame + seal.tag(frame[:2], (frame[2:3], frame[3:])) for frame in self.frames]

    def test_what_comes_as_it_was_sent_is_opened(self) -> None:
        opening = Seal(b"key")
        assert tuple(bytes(opening.opened(memoryview(each))) for each in self.sealed()) == self.frames

    @pytest.mark.parametrize(
        "order", [(1,), (0, 0), (0, 2), (0, 1, 0), (1, 0)], ids=["late", "twice", "gap", "old", "swapped"]
    )
    def test_what_was_reordered_repeated_or_left_out_is_refused(self, order: tuple[int, ...]) -> None:
        opening, sealed = Seal(b"key"), self.sealed()

        def hear() -> None:
            for number in order:
                opening.opened(memoryview(sealed[number]))

        with pytest.raises(PeerError, match="changed, repeated or left out"):
            hear()

    def test_every_bit_counts(self) -> None:
        first, second, _ = self.sealed()
        for place in range(len(first)):
            touched = bytearray(first)
            touched[place] ^= 0x10
            with pytest.raises(PeerError):
                Seal(b"key").opened(memoryview(touched))
        for place in (0, 1, 20_000, -TAG_BYTES - 1, -TAG_BYTES, -1):
            touched = bytearray(second)
            touched[place] ^= 0x10
            opening = Seal(b"key")
            opening.opened(memoryview(first))
            with pytest.raises(PeerError):
                opening.opened(memoryview(touched))

    @pytest.mark.parametrize("size", [0, 1, TAG_BYTES - 1, TAG_BYTES])
    def test_a_frame_shorter_than_its_tag_is_refused(self, size: int) -> None:
        with pytest.raises(PeerError):
            Seal(b"key").opened(memoryview(bytes(size)))

    def test_another_key_opens_nothing(self) -> None:
        with pytest.raises(PeerError):
            Seal(b"other").opened(memoryview(self.sealed()[0]))
