"""`chronik verify` of a node's metadata: snapshots, the Raft log, and the small files beside them."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec
from crc32c import crc32c

from chronik.cli.verify_batches import NO_END
from chronik.cli.verify_findings import FROM_NOTHING, Inspection, Place
from chronik.cli.verify_logs import segments_of
from chronik.cluster.node_identity import KEY_BYTES, KEY_FILE
from chronik.metadata.commands import decode_entry
from chronik.metadata.snapshot import decode_snapshot
from chronik.model import METADATA_TOPIC, RequestError, TooNew
from chronik.raft.entries import EntryKind, Snapshot
from chronik.records.batch import BatchHeader
from chronik.records.reader import read_records
from chronik.server.first_user import FILE_NAME as FIRST_USER
from chronik.server.first_user import check_first_user
from chronik.storage.soundness import find_fault

METADATA_PLACE: Final = (METADATA_TOPIC, 0)


def check_metadata(inspection: Inspection, snapshots: list[Path], log_start: int) -> None:
    """`log_start` is where the Raft log begins: a snapshot has to say what was before that."""
    covered = 0
    for path in snapshots:
        covered = max(covered, int(path.name.rpartition("-")[2]))
        data = path.read_bytes()
        if len(data) <= 4 or crc32c(data[4:]) != int.from_bytes(data[:4], "big"):
            what = f"its checksum does not match; {FROM_NOTHING}"
            inspection.find(path, 0, "damaged metadata snapshot", what)
            continue
        try:
            decode_snapshot(msgspec.msgpack.decode(data[4:], type=Snapshot).data)
        except (TooNew, ValueError) as error:
            inspection.find(path, 0, "damaged metadata snapshot", str(error))
    if covered < log_start:
        path = inspection.root / f"metadata-snapshot-{log_start:020d}"
        what = f"the metadata log begins at {log_start}, and no snapshot says what was before; {FROM_NOTHING}"
        inspection.find(path, -1, "missing metadata snapshot", what, Place(*METADATA_PLACE, log_start))
    for path in segments_of(inspection.root / "topics" / f"{METADATA_TOPIC}-0"):
        _check_log(inspection, path)


def _check_log(inspection: Inspection, path: Path) -> None:
    data = path.read_bytes()

    def read_commands(position: int, header: BatchHeader) -> None:
        try:
            for record in read_records(data, position):
                if record.key == bytes([EntryKind.COMMAND]):
                    decode_entry(record.value or b"")
        except (TooNew, RequestError, ValueError) as error:
            what = f"offset {header.base_offset}: {error}"
            place = Place(*METADATA_PLACE, header.base_offset)
            inspection.find(path, position, "unreadable metadata", what, place)

    find_fault(lambda at, size: data[at : at + size], len(data), int(path.stem), NO_END, read_commands)


def check_small_files(inspection: Inspection) -> int:
    """Returns the number of files."""
    key, first_user = inspection.root / KEY_FILE, inspection.root / FIRST_USER
    if key.exists() and (size := key.stat().st_size) != KEY_BYTES:
        what = (
            f"it has {size} bytes, not {KEY_BYTES}; a start draws another key, which a cluster with a secret "
            "refuses until `chronik cluster remove-node --force` has forgotten this node's former one"
        )
        inspection.find(key, -1, "damaged node key", what)
    if first_user.exists():
        try:
            check_first_user(first_user)
        except msgspec.MsgspecError as error:
            what = f"{error}; write it again with `chronik init`"
            inspection.find(first_user, -1, "damaged first user", what)
    return key.exists() + first_user.exists()
