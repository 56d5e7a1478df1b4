"""Defects of the table of requirements in docs/TESTING.md: each takes away what a row asks for.

`tools/plants.py` plants them.
"""

from __future__ import annotations

from typing import Final

from tools.planted_failures import Plant

__all__ = ["DEFECTS"]

DEFECTS: Final = (
    Plant(
        "what a deposed leader uploaded counts",
        "L06",
        "metadata/state.py",
        "        if command.leader_epoch != old.leader_epoch:\n",
        "        if command.leader_epoch < 0:\n",
        ("tests/unit/tiering/test_tiers.py::test_what_a_deposed_leader_uploads_does_not_count",),
        is_quick=True,
    ),
    Plant(
        "a deposed leader removes what the next one uploaded",
        "L06",
        "tiering/retention.py",
        "written_in <= epoch and name",
        "name",
        ("tests/unit/tiering/test_tiers.py::test_objects_of_a_later_epoch_are_left_alone",),
        is_quick=True,
    ),
    Plant(
        "what the object store gives is believed",
        "L06",
        "tiering/reader.py",
        "            check_batch(data, position)\n",
        "            pass\n",
        ("tests/unit/tiering/test_tiers.py::test_bytes_of_the_store_are_not_trusted",),
        is_quick=True,
    ),
    Plant(
        "a local copy goes before the metadata log has the manifest",
        "L06",
        "cleaning/cleaner.py",
        "    return local, min(partition.high_watermark, 0 if remote is None else remote.end_offset)\n",
        "    return local, partition.high_watermark\n",
        ("tests/unit/tiering/test_tiers.py::test_local_copies_stay_until_the_metadata_log_has_the_manifest",),
        is_quick=True,
    ),
    Plant(
        "a round is synced twice",
        "L01",
        "storage/wal_writer.py",
        "            if is_synced:\n                file.sync()\n",
        "            if is_synced:\n                file.sync()\n                file.sync()\n",
        ("tests/unit/storage/test_store.py::test_one_sync_serves_many_partitions",),
        is_quick=True,
    ),
    Plant(
        "every batch is decompressed on its way in",
        "L01",
        "replication/admission.py",
        "    body: bytes | None = None\n",
        "    body: bytes | None = body_of(header, records)\n",
        ("tests/unit/server/test_opaque_batches.py::test_what_is_stored_is_what_was_sent",),
        is_quick=True,
    ),
    Plant(
        "the memory of a log is a copy",
        "L01",
        "storage/log.py",
        "kept = bytes(batch) if size <= COPIED_BYTES_MAX else batch",
        "kept = bytes(batch)",
        ("tests/unit/server/test_opaque_batches.py::test_what_is_stored_is_what_was_sent",),
        is_quick=True,
    ),
    Plant(
        "any number of openings may wait for their metadata",
        "S13",
        "replication/follower.py",
        "        if len(self._early) >= EARLY_COUNT_MAX or (",
        "        if (",
        ("tests/unit/replication/test_early.py::test_as_many_wait_as_may_and_one_more_is_refused",),
        is_quick=True,
    ),
    Plant(
        "the log does not say which stream found the followers",
        "S01",
        "cluster/peer_links.py",
        '            for stream in ("data", "metadata"):\n',
        '            for stream in ("data", "data"):\n',
        ("tests/unit/cluster/test_peer_links.py::test_the_log_says_who_was_found_for_data_and_for_metadata",),
        is_quick=True,
    ),
    Plant(
        "ticks are 60 ms apart",
        "S16",
        "cluster/raft_driver.py",
        "TICK_SECONDS: Final = 0.025\n",
        "TICK_SECONDS: Final = 0.06\n",
        ("tests/unit/cluster/test_raft_driver.py::test_a_tick_every_50_ms_or_more_often",),
        is_quick=True,
    ),
    Plant(
        "replicas are not compared with the metadata",
        "S10",
        "replication/manager.py",
        "            self._check_metadata()\n",
        "            pass\n",
        ("tests/unit/replication/test_manager.py::test_what_no_event_told_of_is_found_within_a_second",),
        is_quick=True,
    ),
    Plant(
        "every replica is assigned anew each second",
        "S10",
        "replication/manager.py",
        "                    else partition.partition_epoch < assignment.partition_epoch\n",
        "                    else partition.partition_epoch <= assignment.partition_epoch\n",
        ("tests/unit/replication/test_manager.py::test_what_no_event_told_of_is_found_within_a_second",),
        is_quick=True,
    ),
    Plant(
        "an event that nobody publishes",
        "guards",
        "metadata/events.py",
        "\nEvent: TypeAlias = (\n",
        "\nclass Forgotten(msgspec.Struct, frozen=True):\n    pass\n\n\n"
        "Event: TypeAlias = (\n    Forgotten |\n",
        ("tests/unit/test_style.py::test_every_event_is_published_and_heard",),
        is_quick=True,
    ),
    Plant(
        "an API of the requirements is not offered",
        "guards",
        "server/handlers/__init__.py",
        "if isinstance(value, Handler)]",
        'if isinstance(value, Handler) and value.api_key.name != "DESCRIBE_PRODUCERS"]',
        ("tests/unit/server/test_offered_apis.py::test_every_api_of_the_requirements_is_offered",),
        is_quick=True,
    ),
)
