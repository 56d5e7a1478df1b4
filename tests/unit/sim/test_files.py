from __future__ import annotations

import random
from pathlib import PurePath

from chronik.sim.files import Directory, Inode

SEEDS = range(60)


def outcomes(change) -> set[bytes]:
    """What may be left of a file after `change` and a power loss."""
    found = set()
    for seed in SEEDS:
        inode = Inode()
        inode.write(0, b"a" * 10)
        inode.sync()
        change(inode)
        inode.lose_power(random.Random(seed))
        found.add(inode.read(0, 1 << 20))
    return found


def test_synced_bytes_stay() -> None:
    def change(inode: Inode) -> None:
        inode.write(10, b"b" * 5)
        inode.sync()

    assert outcomes(change) == {b"a" * 10 + b"b" * 5}


def test_a_sync_need_not_wait_for_one_that_began_before_it() -> None:
    """Two threads sync one file: what the second saved is safe when it is over, whatever the first does."""
    for seed in SEEDS:
        inode = Inode()
        inode.write(0, b"a" * 10)
        inode.sync(0.0, 9.0)
        inode.write(10, b"b" * 5)
        inode.sync(1.0, 2.0)
        inode.write(15, b"c" * 5)
        inode.sync(3.0, 8.0)
        inode.lose_power(random.Random(seed), 4.0)
        assert inode.read(0, 15) == b"a" * 10 + b"b" * 5


def test_calls_of_a_killed_process_are_over_when_another_one_looks() -> None:
    """A rename is seen only if the sync before it in the same work is over: not one without the other."""
    for seed in SEEDS:
        root, inode = Directory(), Inode()
        root.link("new", inode, 0.0)
        inode.write(0, b"whole", 0.0)
        inode.sync(0.0, 5.0)
        root.rename("new", "file", 5.0)
        root.finish(1.0)
        root.sync(2.0, 2.0)
        root.lose_power(random.Random(seed), PurePath("/"), [], 3.0)
        file = root.entries["file"]
        assert isinstance(file, Inode)
        assert file.read(0, 5) == b"whole"


def test_unsynced_bytes_are_lost_kept_or_zeros() -> None:
    found = outcomes(lambda inode: inode.write(10, b"b" * 5))
    assert found == {b"a" * 10, b"a" * 10 + b"b" * 5, b"a" * 10 + bytes(5)}


def test_large_writes_are_torn() -> None:
    found = outcomes(lambda inode: inode.write(0, b"b" * 10_000))
    assert any(b"a" in image and b"b" in image for image in found)
    assert any(0 in image and image.endswith(b"b") for image in found)


def test_a_failed_sync_leaves_pages_that_no_later_sync_writes() -> None:
    left = set()
    for seed in SEEDS:
        inode = Inode()
        inode.write(0, b"b" * 5)
        inode.fail_sync(random.Random(seed))
        inode.sync()
        assert inode.read(0, 5) == b"b" * 5
        inode.lose_power(random.Random(seed))
        left.add(inode.read(0, 5))
    assert left == {b"", b"b" * 5}


def test_a_sync_that_fails_later_leaves_nothing_before_then() -> None:
    """Of a call under way nothing may be on the disk that comes after what the call did first."""
    for seed in SEEDS:
        inode = Inode()
        inode.write(0, b"early", 0.0)
        inode.sync(0.0, 1.0)
        inode.write(0, b"later", 2.0)
        inode.fail_sync(random.Random(seed), 0.0, 3.0)
        inode.lose_power(random.Random(seed), 1.5)
        assert inode.read(0, 5) == b"early"


def test_names_are_safe_after_their_directory_was_synced() -> None:
    left = set()
    for seed in SEEDS:
        directory = Directory()
        directory.link("old", Inode())
        directory.sync()
        directory.link("new", Inode())
        directory.rename("old", "renamed")
        directory.lose_power(random.Random(seed), PurePath("/"), [])
        left.add(tuple(sorted(directory.entries)))
    assert left == {("old",), ("new", "old"), ("new", "renamed")}


def test_a_flipped_bit_is_seen_at_once() -> None:
    inode = Inode()
    inode.write(0, bytes(100))
    inode.sync()
    place = inode.flip_bit(random.Random(1))
    assert place is not None
    assert inode.read(place, 1) != b"\0"


def test_a_file_without_a_name_is_hastened_too() -> None:
    """Its name is back after a power loss, and so must be what its sync had saved by then."""
    for seed in SEEDS:
        root, inode = Directory(), Inode()
        root.link("file", inode, 0.0)
        root.sync(0.0, 0.0)
        inode.write(0, b"whole", 0.0)
        inode.sync(0.0, 50.0)
        root.unlink("file", 60.0)
        root.hasten(0.0, 100.0)
        root.lose_power(random.Random(seed), PurePath("/"), [], 0.55)
        file = root.entries["file"]
        assert isinstance(file, Inode)
        assert file.read(0, 5) == b"whole"
