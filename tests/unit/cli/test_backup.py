"""What lies where backups lie may be anybody's: names and sizes are checked before anything is read (O04)."""

from __future__ import annotations

import random
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from chronik.cli import backup_files
from chronik.cli.backup_files import (
    BackupDirectory,
    BackupFolder,
    BackupManifest,
    BackupPiece,
    BackupZip,
    PartitionFiles,
    TopicFiles,
    manifest_ids,
    problems,
    read_manifest,
    read_piece,
    write_manifest,
    write_piece,
)
from chronik.cli.backup_objects import BackupObjects, open_place
from chronik.cli.client import CommandFailed
from chronik.model import ChronikError
from chronik.objects.door import ObjectDoor
from chronik.objects.local import LocalObjects
from chronik.objects.store import LIST_MAX, StoredObject
from chronik.records.writer import build_batch

TOPIC_ID = "b84c51a7-7a0e-4fd0-8a2c-6c2f6c1f0a11"
BACKUP_ID = "20260101T120000.000Z"


class Hostile(LocalObjects):
    """Lists what it is told to, besides what there is."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.more: list[StoredObject] = []

    async def listed(self, prefix: str) -> list[StoredObject]:
        return [*await super().listed(prefix), *self.more][:LIST_MAX]


@pytest.fixture
def store(tmp_path: Path) -> Hostile:
    return Hostile(tmp_path)


@pytest.fixture
def objects(store: Hostile) -> Iterator[BackupObjects]:
    made = BackupObjects(ObjectDoor(store, rng=random.Random(1)))
    yield made
    made.close()


@pytest.fixture(params=["directory", "objects"])
def place(request: pytest.FixtureRequest, tmp_path: Path, objects: BackupObjects) -> BackupFolder:
    return BackupDirectory(tmp_path) if request.param == "directory" else objects


def manifest(*pieces: BackupPiece, **changed: Any) -> BackupManifest:
    end = pieces[-1].next_offset if pieces else 0
    files = PartitionFiles(partition=0, start_offset=0, end_offset=end, pieces=list(pieces))
    topic = TopicFiles(name="orders", topic_id=TOPIC_ID, replication_factor=1, configs={}, partitions=[files])
    facts = {"backup_id": BACKUP_ID, "created_ms": 0, "cluster_id": None, "topics": [topic], **changed}
    return BackupManifest(**facts)


def piece(place: BackupFolder) -> BackupPiece:
    return write_piece(place, TOPIC_ID, 0, 0, 1, bytearray(build_batch([], base_offset=0)))


def test_what_was_put_is_there_at_once_and_at_the_next_look(place: BackupFolder, tmp_path: Path) -> None:
    assert place.names("backups") == []
    written = manifest(piece(place))
    write_manifest(place, written)
    for looked in (place, BackupDirectory(tmp_path)):
        assert manifest_ids(looked) == [BACKUP_ID]
        assert read_manifest(looked) == written
        assert list(problems(looked, written)) == [None]


def test_a_large_object_comes_back_whole(objects: BackupObjects, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chronik.cli.backup_objects.RANGE_BYTES", 1000)
    data = random.Random(1).randbytes(4321)
    objects.put("records/x/0/y.batches", data)
    assert objects.get("records/x/0/y.batches", 4321) == data


def test_what_is_larger_than_it_should_be_is_not_read(place: BackupFolder, tmp_path: Path) -> None:
    written = piece(place)
    path = tmp_path / written.path
    whole = path.read_bytes()
    path.write_bytes(whole + b"more")
    (found,) = problems(BackupDirectory(tmp_path), manifest(written))
    assert found == f"{written.path} has more than {written.size_bytes} bytes"
    path.write_bytes(whole[:-1])
    (found,) = problems(BackupDirectory(tmp_path), manifest(written))
    assert found == f"{written.path} has {len(whole) - 1} bytes, not {len(whole)}"


def test_a_piece_of_which_one_bit_is_wrong_is_found(tmp_path: Path) -> None:
    """O04. A batch has its own checksum, which does not cover its offset and its leader epoch."""
    written = piece(BackupDirectory(tmp_path))
    path = tmp_path / written.path
    whole = path.read_bytes()
    for place in (0, 7, 12, len(whole) - 1):
        harmed = bytearray(whole)
        harmed[place] ^= 1
        path.write_bytes(harmed)
        (found,) = problems(BackupDirectory(tmp_path), manifest(written))
        assert found == f"{written.path}: the checksum does not match"
        with pytest.raises(CommandFailed, match="the checksum does not match"):
            read_piece(BackupDirectory(tmp_path), written)


def test_a_zip_that_grows_when_it_is_read_is_not_read_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backup_files, "MANIFEST_BYTES_MAX", 1_000)
    with zipfile.ZipFile(tmp_path / "bomb.zip", "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr(f"backups/{BACKUP_ID}.json", b" " * 10_000_000)
    with pytest.raises(CommandFailed, match="has more than 1000 bytes"):
        read_manifest(BackupZip(tmp_path / "bomb.zip", "r"))


@pytest.mark.parametrize(
    "changed",
    [
        {"path": "../../../etc/passwd"},
        {"path": "/etc/passwd"},
        {"path": f"records/{TOPIC_ID}/0/../../../x.batches"},
        {"path": f"records/{TOPIC_ID}/0/{0:020d}-{1:020d}.batches\n"},
        {"size_bytes": -1},
        {"size_bytes": 1 << 40},
    ],
)
def test_a_manifest_that_names_other_files_is_refused(
    changed: dict[str, object], place: BackupFolder
) -> None:
    write_manifest(place, manifest(msgspec.structs.replace(piece(place), **changed)))
    with pytest.raises(CommandFailed, match="it names a file of orders-0 that is none"):
        read_manifest(place)


def test_a_manifest_under_another_name_is_refused(place: BackupFolder) -> None:
    data = msgspec.json.encode(manifest(backup_id="20260101T120000.001Z"))
    place.put(f"backups/{BACKUP_ID}.json", data)
    with pytest.raises(CommandFailed, match="it says that it is another one"):
        read_manifest(place)


def test_listed_names_that_are_no_backups_are_left_out(store: Hostile, objects: BackupObjects) -> None:
    store.more = [
        StoredObject(name, 5, 0)
        for name in ("backups/../x.json", "backups/\x1b[2J.json", "backups/a/b.json", "elsewhere.json", "")
    ]
    write_manifest(objects, manifest())
    assert manifest_ids(objects) == [BACKUP_ID]


def test_an_object_that_is_listed_larger_than_may_be_is_not_asked_for(
    store: Hostile, objects: BackupObjects
) -> None:
    store.more = [StoredObject(f"backups/{BACKUP_ID}.json", 1 << 50, 0)]
    with pytest.raises(CommandFailed, match="has more than"):
        read_manifest(objects)


def test_a_listing_that_does_not_end_is_refused(store: Hostile, objects: BackupObjects) -> None:
    store.more = [StoredObject(f"backups/{number}", 5, 0) for number in range(LIST_MAX)]
    with pytest.raises(CommandFailed, match="begin a new backup in another prefix"):
        manifest_ids(objects)


@pytest.mark.parametrize(
    ("where", "told"),
    [
        ("ftp://host/x", "name a directory, file:///folder or s3://bucket/prefix"),
        ("s3:///x", "name a directory, file:///folder or s3://bucket/prefix"),
        ("file://host/x", "names no folder"),
        ("s3://key:secret@bucket/x", "credentials are settings of their own"),
        ("s3://bucket/segments/", "is where the nodes keep their segments"),
    ],
)
def test_a_place_that_cannot_be_is_refused_in_a_sentence(
    where: str, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CHRONIK_OBJECT_STORE", "s3://bucket/segments")
    with pytest.raises(ChronikError, match=told), open_place(where):
        pass


def test_a_file_url_is_a_directory(tmp_path: Path) -> None:
    with open_place((tmp_path / "a b").as_uri()) as place:
        write_manifest(place, manifest())
    assert (tmp_path / "a b" / "backups" / f"{BACKUP_ID}.json").stat().st_mode & 0o777 == 0o600
