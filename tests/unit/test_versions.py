"""Everything on disk and between nodes carries a version: what is newer is refused, what is older is read."""

from __future__ import annotations

import json
from collections.abc import Callable

import msgspec
import pytest
from crc32c import crc32c

from chronik.metadata import commands as c
from chronik.metadata.levels import LEVEL_FIRST, LEVEL_LAST
from chronik.metadata.snapshot import decode_snapshot, encode_snapshot
from chronik.metadata.state import ClusterState
from chronik.model import ErrorCode, TooNew
from chronik.published.steps import PublishedStep
from chronik.storage import checkpoint, wal_format
from chronik.storage.producer_state import ProducerStates

NEWER = 77


def wal_entry(version: int) -> object:
    header = bytearray(wal_format.encode_header(1, 5, 3, bytes(16), 0, 9, b"payload"))
    header[-3] = version
    header[4:8] = crc32c(bytes(header[8:])).to_bytes(4, "big")
    return wal_format.decode_header(bytes(header))


def checkpoint_file(version: int) -> object:
    """A newer one may have any shape behind its version."""
    rest = [1, True, b"", []] if version == 1 else [{"something": "else"}]
    body = msgspec.msgpack.encode([version, *rest])
    return checkpoint.decode(crc32c(body).to_bytes(4, "big") + body)


def producer_state(version: int) -> object:
    plain = msgspec.msgpack.decode(ProducerStates().snapshot())
    return ProducerStates.restore(msgspec.msgpack.encode([version, *plain[1:]]))


def metadata_entry(version: int) -> object:
    entry = c.encode_entry(c.CommandEntry(1, 1, c.Noop()))
    return c.decode_entry(bytes([version]) + (entry[1:] if version == 1 else b"\xc1"))


def metadata_snapshot(version: int) -> object:
    return decode_snapshot(bytes([version]) + (encode_snapshot(ClusterState())[1:] if version == 1 else b""))


def archive_step(version: int) -> object:
    return msgspec.json.decode(
        json.dumps({"version": 3, "topic": "t", "format": version}), type=PublishedStep
    )


@pytest.mark.parametrize(
    ("read", "known"),
    [
        (wal_entry, wal_format.VERSION),
        (checkpoint_file, 1),
        (producer_state, 1),
        (metadata_entry, c.FORMAT_VERSION),
        (metadata_snapshot, 1),
        (archive_step, 1),
    ],
)
def test_a_newer_version_is_refused_in_a_sentence_that_names_the_fix(
    read: Callable[[int], object], known: int
) -> None:
    assert read(known) is not None
    with pytest.raises((TooNew, msgspec.ValidationError)) as refused:
        read(NEWER)
    told = str(refused.value)
    assert f"version {NEWER}" in told
    assert f"reads up to {known}" in told
    assert "start the node with the release that wrote it, or a newer one" in told
    assert "\n" not in told


def test_the_level_goes_up_and_never_back() -> None:
    state = ClusterState()
    assert state.level == LEVEL_FIRST
    assert state.apply(c.SetLevel(level=LEVEL_LAST), 1).refused is None
    assert state.level == LEVEL_LAST
    refused = state.apply(c.SetLevel(level=LEVEL_FIRST), 2).refused
    assert refused is not None
    assert refused.code is ErrorCode.invalid_update_version
    assert state.level == LEVEL_LAST


def test_a_level_that_this_release_does_not_know_ends_the_node() -> None:
    state = ClusterState()
    with pytest.raises(TooNew, match=f"at level {NEWER} and this release knows levels 1 to {LEVEL_LAST}"):
        state.apply(c.SetLevel(level=NEWER), 1)
    state.level = NEWER
    with pytest.raises(TooNew, match="start this node with the release that the others run"):
        decode_snapshot(encode_snapshot(state))


def test_a_snapshot_keeps_the_level_and_one_without_is_of_the_first() -> None:
    state = ClusterState()
    state.level = LEVEL_LAST
    data = encode_snapshot(state)
    assert decode_snapshot(data).level == LEVEL_LAST
    plain = msgspec.msgpack.decode(data[1:])
    del plain["level"]
    assert decode_snapshot(data[:1] + msgspec.msgpack.encode(plain)).level == LEVEL_FIRST
