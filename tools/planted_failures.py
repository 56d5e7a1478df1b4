"""Bugs of the table of failures in docs/TESTING.md that are below the simulator's level.

`tools/plants.py` plants them.
"""

from __future__ import annotations

from typing import Final, NamedTuple

__all__ = ["BY_HAND", "FAILURES", "Plant"]

COORDINATORS: Final = "tests/cluster/test_find_coordinator.py"


class Plant(NamedTuple):
    name: str
    failure: str
    """The row of a table in docs/TESTING.md: a failure, a requirement, the runbook or the guards."""
    file: str
    """Under src/chronik; one in a folder beside it (`plants.BESIDE`) from the root."""
    text: str
    replacement: str
    tests: tuple[str, ...]
    """Of the row; each of them must fail."""
    is_quick: bool = False


FAILURES: Final = (
    Plant(
        "replicas are those of brokers 1, 2 and 3",
        "T06",
        "cluster/placement.py",
        "    return tuple(_replicas(ring, start + number, replication_factor) for number in numbers)\n",
        "    return tuple((1, 2, 3)[:replication_factor] for number in numbers if ring)\n",
        (
            "tests/unit/cluster/test_placement.py::test_ids_are_those_of_the_live_brokers",
            "tests/cluster/test_start.py::test_a_config_for_other_ids_than_one_to_three",
        ),
        is_quick=True,
    ),
    Plant(
        "acks=all waits for every assigned replica",
        "T08",
        "replication/replica.py",
        "isr = self.isr if self._pending_isr is None else {*self.isr, *self._pending_isr}\n",
        "isr = self.replicas\n",
        (
            "tests/cluster/test_produce.py::test_a_dead_follower_does_not_stall_acks_all",
            "tests/cluster/test_produce.py::test_a_frozen_follower_leaves_the_isr_in_time",
        ),
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
        "batches keep the base offset that the client gave them",
        "T20",
        "storage/log.py",
        "        stamp(batch, 0, base_offset, leader_epoch)\n        stamped",
        "        stamp(batch, 0, 0, leader_epoch)\n        stamped",
        ("tests/compat/test_clients.py::test_offsets_go_on_from_batch_to_batch",),
    ),
    Plant(
        "recovery keeps all of the WAL in memory",
        "T21",
        "storage/recovery.py",
        "                file.sync()\n                next_round = partial(",
        "                file.sync()\n"
        '                self.__dict__.setdefault("kept", []).append(file.read_at(0, file.size()))\n'
        "                next_round = partial(",
        (
            "tests/unit/storage/test_store.py::test_recovery_takes_memory_for_a_part_of_the_wal_only",
            "tests/cluster/test_recovery.py::test_recovery_takes_memory_for_a_part_of_the_wal_only",
        ),
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
        (
            "tests/unit/cleaning/test_retention.py::test_every_topic_has_its_own_retention",
            "tests/compat/test_restart.py::test_every_topic_has_its_own_retention",
        ),
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
        (
            "tests/unit/test_config.py::test_listening_everywhere_without_an_advertised_name_warns",
            "tests/compat/test_start.py::test_it_advertises_what_it_was_told",
        ),
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
        "metadata/regular_expressions.py",
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
        "query/unreadable_records.py",
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
        (
            "tests/unit/server/test_move_handlers.py::test_a_live_broker_is_not_unregistered",
            "tests/cluster/test_moves.py::test_live_brokers_are_not_unregistered",
        ),
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
    Plant(
        "a null array breaks the parser",
        "T26",
        "wire/reading.py",
        '            raise PeerError(f"{field.name} is null")\n        cursor.reserve(count, item_size_min)',
        '            raise TypeError(f"{field.name} is null")\n        cursor.reserve(count, item_size_min)',
        (
            "tests/unit/wire/test_schema.py::test_hostile_bytes_raise_peer_error_only",
            "tests/unit/server/test_hostile_clients.py::test_a_node_outlives_hostile_clients",
        ),
        is_quick=True,
    ),
    Plant(
        "clients of the middle years see no brokers",
        "T28",
        "server/handlers/metadata.py",
        "        brokers=brokers_of(",
        "        brokers=[] if ctx.api_version in (10, 11) else brokers_of(",
        ("tests/compat/test_old_clients.py::test_client_2_8",),
    ),
    Plant(
        "the limit of decompression is looked at when it is over",
        "T36",
        "records/compression.py",
        "        size = min(size, limit)\n",
        "        size = 1 << 30 if limit >= 1 << 20 else min(size, limit)\n",
        (
            "tests/unit/records/test_compression.py"
            "::test_a_gigabyte_in_a_few_kilobytes_takes_no_more_memory_than_the_limit",
        ),
    ),
    Plant(
        "readers take a batch apart as a whole",
        "T36",
        "records/reader.py",
        "ROWS_AT_ONCE_MAX: Final = 20_000\n",
        "ROWS_AT_ONCE_MAX: Final = 20_000_000\n",
        ("tests/unit/records/test_crowds.py::test_no_reader_takes_more_memory_than_its_budget",),
    ),
    Plant(
        "batches are decompressed on the loop, whatever their size",
        "T36",
        "replication/admission.py",
        "    if not is_on_loop:\n",
        "    if True:\n",
        ("tests/unit/server/test_large_batches.py::test_they_are_looked_into_beside_the_loop",),
        is_quick=True,
    ),
    Plant(
        "every pattern is matched on the loop",
        "T37",
        "groups/patterns.py",
        "        return len(self.regex) <= CHEAP_PATTERN_MAX and",
        "        return bool(self.regex) or",
        ("tests/unit/groups/test_patterns.py::test_an_expensive_pattern_leaves_the_loop",),
        is_quick=True,
    ),
    Plant(
        "constants are cut out of the caller's text",
        "T38",
        "query/run.py",
        "            value = single(self.connection, execute, [json.dumps(query)])\n",
        "            from chronik.query.statement import walk\n\n"
        '            places = [one["query_location"] for one in walk(constant) if "query_location" in one]\n'
        "            text = self._query.encode()[min(places) : max(places) + 1].decode()\n"
        '            value = single(self.connection, f"SELECT ({text})::BIGINT")\n',
        ("tests/unit/query/test_statement.py::test_constants_are_not_cut_out_of_the_text",),
        is_quick=True,
    ),
    Plant(
        "any number of bytes fits into a result",
        "T39",
        "query/results.py",
        "        if len(data) > self.left:\n",
        "        if self.left is None:\n",
        ("tests/query/test_hostile_sql.py::test_a_result_of_any_size_ends_neither_sql_nor_search",),
    ),
    Plant(
        "a process that hangs is left alone",
        "T39",
        "query/process.py",
        "            now, cpu = loop.time(), _cpu_seconds(self.pid)\n",
        "            now, cpu = loop.time(), 0.0\n            self._heard_at = now\n",
        ("tests/query/test_hostile_sql.py::test_a_process_that_hangs_is_replaced_and_the_metrics_say_so",),
    ),
    Plant(
        "clients may write to internal topics",
        "T41",
        "replication/partition.py",
        "self.require_leader()\n        if self.is_internal:\n            raise",
        "self.require_leader()\n        if False:\n            raise",
        ("tests/compat/test_internal_topics.py::test_nobody_but_the_coordinator_writes_there",),
    ),
    Plant(
        "the leader writes the checksum anew, in the wrong byte order",
        "T19",
        "records/batch.py",
        "len(buffer) - position - OVERHEAD_BYTES, leader_epoch)\n",
        "len(buffer) - position - OVERHEAD_BYTES, leader_epoch)\n"
        "    crc = crc32c(memoryview(buffer)[position + ATTRIBUTES_OFFSET :])\n"
        '    struct.pack_into("<I", buffer, position + CRC_OFFSET, crc)\n',
        ("tests/compat/test_segment_files.py::test_what_was_produced_is_what_the_dump_tool_reads",),
    ),
    Plant(
        "nothing that readers of history do is red",
        "T32",
        "bench/history.py",
        "    return missed + above(quiet, busy, RATIOS_MAX)\n",
        "    return missed\n",
        ("tests/unit/test_bench_bars.py::test_readers_of_history_that_hurt_are_named",),
        is_quick=True,
    ),
    Plant(
        "nothing that idle partitions cost is red",
        "T33",
        "bench/partitions.py",
        "        if own > ratio_max * base:\n",
        "        if base < 0:\n",
        ("tests/unit/test_bench_bars.py::test_idle_partitions_that_cost_too_much_are_named",),
        is_quick=True,
    ),
    Plant(
        "a strange value fails the search that finds it",
        "T40",
        "query/searching.py",
        "            return found\n        except (ValueError, OverflowError, RecursionError):\n",
        "            return found\n        except ZeroDivisionError:\n",
        ("tests/query/test_poison.py::test_strange_values_can_be_searched_queried_and_shown",),
    ),
)

BY_HAND: Final = {
    "tests/spark/test_audit.py::test_planted_faults_are_found": "plants its faults itself",
}
"""Cited tests for which no bug is planted here, and how they were seen to fail."""
