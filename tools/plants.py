"""Bugs below the simulator's level, each with the tests of the table of failures that must notice it.

`make mutants` plants one at a time in a copy of the repository and runs those tests there: each has to fail,
by itself, not because the copy is broken. `is_quick` ones take seconds; `tests/unit/test_plants.py` runs one
of them in each `make test`, another one every day.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).parents[1]
COPIED: Final = ("src", "tests", "tools", "bench", "docs", "deploy", "examples")
COORDINATORS: Final = "tests/cluster/test_find_coordinator.py"
LINKED: Final = (".venv", ".jars", ".foreign")
SECONDS_MAX: Final = 600
"""A test that does not end has noticed."""


class Plant(NamedTuple):
    name: str
    failure: str
    """The row of the table of failures (docs/TESTING.md)."""
    file: str
    """Under src/chronik."""
    text: str
    replacement: str
    tests: tuple[str, ...]
    """Of the row; each of them must fail."""
    is_quick: bool = False


PLANTS: Final = (
    Plant(
        "the highest id is forgotten with its schema",
        "H06",
        "registry/operations.py",
        "            records = [_last_id(state), *records, ",
        "            records = [*records, ",
        ("tests/unit/registry/test_registry_http.py::test_no_id_is_given_twice_however_much_was_deleted",),
        is_quick=True,
    ),
    Plant(
        "a registration whose answer failed was not made",
        "H06",
        "registry/shard.py",
        "            self._is_in_doubt = True\n",
        "",
        (
            "tests/unit/registry/test_doubt.py::test_a_write_that_is_in_the_log_counts_though_it_failed",
            "tests/unit/registry/test_doubt.py::test_a_client_that_leaves_while_its_schema_is_written",
        ),
        is_quick=True,
    ),
    Plant(
        "a schema is registered by what held when it was judged",
        "H06",
        "registry/operations.py",
        "            if again != plan or",
        "            if False and again != plan or",
        ("tests/unit/registry/test_registry_http.py::test_many_at_once_get_ids_of_their_own",),
        is_quick=True,
    ),
    Plant(
        "records that hold themselves match",
        "H06",
        "registry/avro_compat.py",
        "            if not changed and known == len(self._records):\n",
        "            if known >= 0:\n",
        (
            "tests/unit/registry/test_avro_rules.py"
            "::test_a_record_that_holds_itself_deep_down_is_compared_to_its_end",
        ),
        is_quick=True,
    ),
    Plant(
        "a oneOf takes what one of its branches takes",
        "H06",
        "registry/json_compat.py",
        '        if kind == "oneOf" and',
        '        if kind == "none" and',
        ("tests/unit/registry/test_json_rules.py::test_what_is_not",),
        is_quick=True,
    ),
    Plant(
        "a new leader begins without the log",
        "H06",
        "registry/shard.py",
        "            _apply_batch(self._state, batch)\n",
        "            return\n",
        ("tests/cluster/test_schema_registry.py::test_no_id_is_given_twice_when_the_leader_dies",),
    ),
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
        "replicas are those of brokers 1, 2 and 3",
        "T06",
        "cluster/placement.py",
        "    return tuple(_replicas(ring, start + number, replication_factor) for number in numbers)\n",
        "    return tuple((1, 2, 3)[:replication_factor] for number in numbers if ring)\n",
        ("tests/unit/cluster/test_placement.py::test_ids_are_those_of_the_live_brokers",),
        is_quick=True,
    ),
    Plant(
        "acks=all waits for every assigned replica",
        "T08",
        "replication/replica.py",
        "isr = self.isr if self._pending_isr is None else {*self.isr, *self._pending_isr}\n",
        "isr = self.replicas\n",
        ("tests/cluster/test_produce.py::test_a_dead_follower_does_not_stall_acks_all",),
    ),
    Plant(
        "min.insync.replicas is logged and not enforced",
        "T09",
        "replication/replica.py",
        "        self.lacks_replicas = in_sync < self.config.min_insync_replicas and",
        "        self.lacks_replicas = False and in_sync < self.config.min_insync_replicas and",
        ("tests/cluster/test_produce.py::test_min_insync_replicas_is_enforced_at_once",),
    ),
    Plant(
        "a commit index beyond the log is clamped",
        "T14",
        "raft/follower.py",
        "        if message.commit > core.log.last_index:\n            raise PeerError(",
        "        if message.commit > core.log.last_index:\n            return\n            raise PeerError(",
        (
            "tests/unit/raft/test_5_3_log_replication.py"
            "::test_a_heartbeat_that_commits_beyond_the_log_is_refused_not_clamped",
        ),
        is_quick=True,
    ),
    Plant(
        "every node names itself as the coordinator",
        "T15",
        "server/coordinators.py",
        "    broker = services.state.brokers.get(leader)\n",
        "    broker = services.state.brokers.get(services.settings.node_id)\n",
        (f"{COORDINATORS}::test_every_node_names_the_same_coordinator_and_not_itself",),
    ),
    Plant(
        "a coordinator begins with nothing",
        "T16",
        "coordinators/journal.py",
        "apply(header, memoryview(buffer)[position : position + header.size_bytes])\n",
        "pass\n",
        (f"{COORDINATORS}::test_committed_offsets_survive_the_coordinators_death",),
    ),
    Plant(
        "the checksum covers the leader epoch",
        "T19",
        "records/batch.py",
        "    if crc32c(memoryview(buffer)[position + ATTRIBUTES_OFFSET : end]) != header.crc:\n",
        "    view = memoryview(buffer)\n"
        "    if header.leader_epoch and crc32c(view[position + OVERHEAD_BYTES : end]) != header.crc:\n",
        ("tests/unit/records/test_batch.py::test_offset_and_epoch_lie_outside_the_crc",),
        is_quick=True,
    ),
    Plant(
        "only the first of several batches is read",
        "T20",
        "records/batch.py",
        "        yield position, header\n        position += size\n",
        "        yield position, header\n        return\n",
        ("tests/unit/records/test_batch.py::test_several_batches_in_a_row",),
        is_quick=True,
    ),
    Plant(
        "recovery keeps all of the WAL in memory",
        "T21",
        "storage/recovery.py",
        "                file.sync()\n                scanner = WalScanner(",
        "                file.sync()\n"
        '                self.__dict__.setdefault("kept", []).append(file.read_at(0, file.size()))\n'
        "                scanner = WalScanner(",
        ("tests/unit/storage/test_store.py::test_recovery_takes_memory_for_a_part_of_the_wal_only",),
        is_quick=True,
    ),
    Plant(
        "a node forgets its metadata when it restarts",
        "T22",
        "cluster/raft_storage.py",
        "    async def load_entries(self) -> list[Entry]:\n",
        "    async def load_entries(self) -> list[Entry]:\n        return []\n\n"
        "    async def not_loaded(self) -> list[Entry]:\n",
        ("tests/cluster/test_start.py::test_followers_keep_their_metadata_over_a_restart",),
    ),
    Plant(
        "retention knows one topic",
        "T23",
        "cleaning/cleaner.py",
        "        partitions = list(self._replicas.all())\n        self._undated",
        '        partitions = [one for one in self._replicas.all() if one.tp.topic == "short"]\n'
        "        self._undated",
        ("tests/unit/cleaning/test_retention.py::test_every_topic_has_its_own_retention",),
        is_quick=True,
    ),
    Plant(
        "a search leaves out a node",
        "T24",
        "admin/scatter.py",
        "    return shares, failures\n",
        "    if len(shares) > 1:\n        shares.popitem()\n    return shares, failures\n",
        ("tests/cluster/test_http.py::test_a_search_asks_every_partition_once_wherever_it_is_led",),
    ),
    Plant(
        "produce waits for the index writer's lock",
        "T25",
        "replication/partition.py",
        "        self.require_leader()\n        if self.is_internal:\n",
        "        self.require_leader()\n"
        "        import fcntl\n\n"
        '        places = self.log.directory.parents[1] / "query" / "index"\n'
        '        for lock in places.glob(f"{self.tp.topic}.*/.tantivy-writer.lock"):\n'
        '            with lock.open("w") as held:\n'
        "                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)\n"
        "        if self.is_internal:\n",
        ("tests/cluster/test_locked_index.py::test_a_locked_index_fails_no_produce_on_any_node",),
    ),
    Plant(
        "a null array is taken for one",
        "T26",
        "wire/reading.py",
        '                return None\n            raise PeerError(f"{field.name} is null")\n'
        "        cursor.reserve(count, item_size_min)",
        "                return None\n            return None\n        cursor.reserve(count, item_size_min)",
        ("tests/unit/server/test_topic_handlers.py::test_a_null_array_closes_the_connection",),
        is_quick=True,
    ),
    Plant(
        "SASL is offered and not asked for",
        "T27",
        "server/connection.py",
        "            if not session.serves(header.api_key):\n",
        "            if not session:\n",
        ("tests/unit/server/test_login.py::test_every_api_before_a_login",),
        is_quick=True,
    ),
    Plant(
        "Metadata is offered in new versions only",
        "T28",
        "server/handlers/metadata.py",
        "    versions=(0, 13),\n",
        "    versions=(7, 13),\n",
        ("tests/compat/test_old_clients.py::test_client_0_11",),
    ),
    Plant(
        "Produce is offered from v3 on",
        "T29",
        "server/handlers/produce.py",
        "    ApiKey.PRODUCE,\n    versions=(0, 13),\n",
        "    ApiKey.PRODUCE,\n    versions=(3, 13),\n",
        ("tests/compat/test_clients.py::test_every_compression",),
    ),
    Plant(
        "Spark wants offsets that follow each other",
        "T30",
        "spark/reader.py",
        "            yield with_reasons(batch, self._columns)\n",
        '            if "offset" in self._columns and batch.num_rows:\n'
        '                ends = batch.column("offset")\n'
        "                if ends[-1].as_py() - ends[0].as_py() >= batch.num_rows:\n"
        '                    raise DataLoss("offsets are missing")\n'
        "            yield with_reasons(batch, self._columns)\n",
        ("tests/spark/test_read.py::test_aborted_transactions_are_not_seen",),
    ),
    Plant(
        "the end of what is committed is out of range after a restart",
        "T31",
        "storage/reading.py",
        "    if not log_.log_start_offset <= offset <= log_.log_end_offset:\n",
        "    if not log_.log_start_offset <= offset < log_.log_end_offset + (not log_.segments):\n",
        ("tests/compat/test_restart.py::test_who_reads_what_is_committed_goes_on_after_a_restart",),
    ),
    Plant(
        "retention.bytes does nothing",
        "T34",
        "cleaning/cleaner.py",
        "retention_bytes=config.retention_bytes)",
        "retention_bytes=-1)",
        ("tests/unit/metadata/test_topic_config.py::test_every_key_does_something",),
        is_quick=True,
    ),
    Plant(
        "clients are told the address that is listened on",
        "T35",
        "config.py",
        "        if self.advertise is not None:\n            return Address(",
        "        if False:\n            return Address(",
        ("tests/unit/test_config.py::test_listening_everywhere_without_an_advertised_name_warns",),
        is_quick=True,
    ),
    Plant(
        "decompression has no limit",
        "T36",
        "records/compression.py",
        "        limit = decompressed_bytes_allowed(len(data))\n",
        "        limit = 1 << 40\n",
        ("tests/unit/records/test_unreadable.py::test_a_leader_that_has_to_look_into_a_bomb_refuses_it",),
        is_quick=True,
    ),
    Plant(
        "patterns backtrack",
        "T37",
        "metadata/expressions.py",
        "        return re2.compile(text, options)\n",
        "        import re\n\n        return re.compile(text)\n",
        ("tests/unit/groups/test_patterns.py::test_what_makes_others_backtrack_costs_nothing",),
    ),
    Plant(
        "SQL runs whatever is in the text",
        "T38",
        "query/statement.py",
        "        if kind not in _NODES:\n",
        '        if kind not in _NODES and not kind.endswith("QUERY_NODE"):\n',
        ("tests/unit/query/test_statement.py::test_nothing_but_select_runs",),
        is_quick=True,
    ),
    Plant(
        "a result has no end",
        "T39",
        "query/results.py",
        "        if sink.rows >= rows_max or not sink.fits(data):\n            return True\n",
        "        sink.fits(data)\n",
        ("tests/unit/query/test_results.py::test_a_result_is_cut_at_its_rows_and_at_its_bytes",),
        is_quick=True,
    ),
    Plant(
        "a bad batch stops the indexer",
        "T40",
        "query/skipping.py",
        "        skipped.add(topic, partition, batch.last_offset - batch.first_offset + 1, str(batch))\n",
        "        raise ValueError(str(batch))\n",
        ("tests/query/test_poison.py::test_bad_batches_are_left_out_and_nothing_else",),
    ),
    Plant(
        "naming an internal topic creates it",
        "T41",
        "server/handlers/metadata.py",
        '            if not create or is_internal_topic(name or ""):\n',
        "            if not create:\n",
        ("tests/compat/test_internal_topics.py::test_naming_one_makes_no_ordinary_topic",),
    ),
    Plant(
        "a living broker is unregistered",
        "T42",
        "server/handlers/unregister_broker.py",
        "fenced_only=True)",
        "fenced_only=False)",
        ("tests/unit/server/test_move_handlers.py::test_a_live_broker_is_not_unregistered",),
        is_quick=True,
    ),
    Plant(
        "the audit passes over replicas without a batch",
        "T43",
        "spark/jobs/audit.py",
        "        _add_empty_replicas(result, scope)\n",
        "",
        (
            "tests/spark/test_audit.py"
            "::test_without_metadata_the_other_partitions_tell_how_many_replicas_there_are",
        ),
    ),
)


class BrokenPlantError(Exception):
    """The tests could not run with this bug, so none of them judged it."""


def plant(one: Plant, folder: Path) -> None:
    """A copy of what tests need, with the bug in it. Fails when the source no longer has the place."""
    for name in COPIED:
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", "logs"))
    for path in ROOT.iterdir():
        if path.is_file() and not path.name.startswith("."):
            shutil.copy(path, folder / path.name)
    for name in LINKED:
        (folder / name).symlink_to(ROOT / name)
    path = folder / "src" / "chronik" / one.file
    text = path.read_text()
    if text.count(one.text) != 1:
        raise SystemExit(f"plant {one.name!r}: its place in {one.file} is there {text.count(one.text)} times")
    path.write_text(text.replace(one.text, one.replacement))


def unnoticed(one: Plant) -> list[str]:
    """Those of its tests that pass although the bug is there."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        plant(one, folder)
        return [test for test in one.tests if not _fails(test, folder)]


def _fails(test: str, folder: Path) -> bool:
    paths = os.pathsep.join((str(folder / "src"), str(folder)))
    env = {**os.environ, "PYTHONPATH": paths, "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-n", "0", test]
    process = subprocess.Popen(
        command, cwd=folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        out, _ = process.communicate(timeout=SECONDS_MAX)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return True
    return judge(out, process.returncode)


def judge(out: str, code: int) -> bool:
    """Whether the test failed by itself. What could not be collected, or set up, shows nothing."""
    has_failed = any(line.startswith("FAILED ") for line in out.splitlines())
    if code not in (0, 1) or has_failed != (code == 1):
        raise BrokenPlantError((out.strip().splitlines() or [f"exit code {code}"])[-1])
    return has_failed
