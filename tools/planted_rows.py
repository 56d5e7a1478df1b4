"""More defects of the table of requirements in docs/TESTING.md: replication, metadata and the log.

`tools/plants.py` plants them.
"""

from __future__ import annotations

from typing import Final

from tools.planted_failures import Plant

__all__ = ["ROWS"]

ROWS: Final = (
    Plant(
        "a lower bound of replicas in sync counts from the next assignment on",
        "S02",
        "replication/replica.py",
        "        self.log.reconfigure(log_config)\n        self._count_replicas()\n",
        "        self.log.reconfigure(log_config)\n",
        (
            "tests/unit/replication/test_follower_reports.py"
            "::test_min_insync_replicas_counts_from_the_moment_it_is_changed",
        ),
        is_quick=True,
    ),
    Plant(
        "a follower that lags stays in the ISR",
        "S02",
        "replication/replica.py",
        "        if lagging and self._pending_isr is None:\n",
        "        if lagging and self._pending_isr is not None:\n",
        (
            "tests/unit/replication/test_isr_members.py"
            "::test_a_follower_that_lags_leaves_the_isr_and_the_others_are_enough",
        ),
        is_quick=True,
    ),
    Plant(
        "each lower limit of a figure counts as reached",
        "S03",
        "bench/bars.py",
        '    return {">=": value >= limit,',
        '    return {">=": True,',
        ("tests/unit/test_bench_bars.py::test_every_bar_can_be_missed_and_reached",),
        is_quick=True,
    ),
    Plant(
        "an aim that is missed is not told",
        "S03",
        "bench/cluster_table.py",
        "        if line.is_wished is False\n",
        "        if line.is_wished is None\n",
        (
            "tests/unit/test_bench_bars.py"
            "::test_what_misses_its_aim_alone_is_named_apart_from_what_misses_its_bar",
        ),
        is_quick=True,
    ),
    Plant(
        "one request in a hundred is refused, and a second attempt would hide it",
        "S03",
        "replication/partition.py",
        "        if acks == ACKS_ALL and self.lacks_replicas:\n            self.require_enough_replicas()\n",
        "        if acks == ACKS_ALL and (self.lacks_replicas or now_ms % 100 == 7):\n"
        "            raise RequestError(ErrorCode.not_enough_replicas)\n",
        ("tests/cluster/test_produce.py::test_128_threads_one_message_at_a_time",),
    ),
    Plant(
        "the queue of the WAL is never called full",
        "S04",
        "storage/wal.py",
        "self.pressure: Pressure = self._queue\n",
        "self.pressure: Pressure = "
        "type('Roomy', (), {'full': False, 'when_room': lambda self, call: call()})()\n",
        (
            "tests/unit/storage/test_store.py::test_the_queue_says_when_it_is_full",
            "tests/cluster/test_overload.py"
            "::test_an_overload_refuses_nothing_drops_nothing_and_takes_no_memory",
        ),
        is_quick=True,
    ),
    Plant(
        "CHRONIK_DISABLE_REALTIME_INDEX is not read",
        "S05",
        "query/gateway.py",
        "        if self._settings.disable_realtime_index or self._closed:\n",
        "        if self._closed:\n",
        ("tests/query/test_search.py::test_it_can_be_turned_off",),
    ),
    Plant(
        "figures of queries may have any value",
        "S05",
        "bench/query.py",
        "    return figure in AIMS and verdict(AIMS[figure], value) is False\n",
        "    return figure in AIMS and verdict(AIMS[figure], value) is None\n",
        ("tests/unit/test_bench_bars.py::test_query_figures_and_compaction_can_miss_their_bars",),
        is_quick=True,
    ),
    Plant(
        "followers are counted as soon as the leader has applied an entry",
        "S06",
        "cluster/stage_times.py",
        "        while waiting and waiting[0][0] <= index:\n",
        "        while waiting:\n",
        ("tests/unit/cluster/test_stage_times.py::test_each_entry_is_counted_once_for_each_follower",),
        is_quick=True,
    ),
    Plant(
        "what waits for a follower that went counts when it is back",
        "S06",
        "cluster/stage_times.py",
        "        self._unapplied.pop(follower, None)\n",
        "        pass\n",
        (
            "tests/unit/cluster/test_stage_times.py"
            "::test_what_was_written_while_a_follower_was_away_is_not_counted",
        ),
        is_quick=True,
    ),
    Plant(
        "links to a dead node are dialed in step",
        "S07",
        "links/connections.py",
        "min(wait, RETRY_SECONDS) + JITTER_SECONDS * self._jitter()",
        "min(wait, RETRY_SECONDS) + JITTER_SECONDS / 2",
        (
            "tests/unit/links/test_link.py"
            "::test_a_peer_that_refuses_is_tried_at_once_and_then_every_second_with_jitter",
        ),
        is_quick=True,
    ),
    Plant(
        "metadata requests create topics whatever the setting says",
        "S12",
        "server/handlers/metadata.py",
        "    create = ctx.services.settings.auto_create_topics and request.allow_auto_topic_creation\n",
        "    create = request.allow_auto_topic_creation\n",
        (
            "tests/unit/server/test_topic_handlers.py"
            "::test_auto_creation_needs_the_settings_and_the_clients_leave",
        ),
        is_quick=True,
    ),
    Plant(
        "followers hear with the next entry that one is committed",
        "S14",
        "raft/leader.py",
        "        if has_news or (peer.is_nudged",
        "        if (has_news and peer.is_nudged) or (peer.is_nudged",
        ("tests/unit/raft/test_5_3_log_replication.py::test_a_proposal_reaches_everybody_without_a_tick",),
        is_quick=True,
    ),
    Plant(
        "metadata never goes with the data",
        "S17",
        "cluster/transport.py",
        "            if self._use_fast_path and self._send_on(",
        "            if not self._use_fast_path and self._send_on(",
        ("tests/unit/cluster/test_transport.py::test_what_went_over_which_port_is_counted",),
        is_quick=True,
    ),
    Plant(
        "appends that wait for a tick are not counted",
        "S19",
        "cluster/status.py",
        "            fallback_messages=self._transport.fallback_count,\n",
        "            fallback_messages=0,\n",
        ("tests/cluster/test_rolling.py::test_a_cluster_of_both_kinds_works_under_load",),
    ),
    Plant(
        "topics of one request are created one by one",
        "S21",
        "server/handlers/create_topics.py",
        "        for name, refused in await services.metadata.submit_each(planned, timeout_s=timeout_s):\n"
        "            results[name] = _failed(name, refused.code, refused.message)\n",
        "        for one in planned:\n"
        "            for name, refused in await services.metadata.submit_each([one], timeout_s=timeout_s):\n"
        "                results[name] = _failed(name, refused.code, refused.message)\n",
        (
            "tests/unit/server/test_topic_handlers.py"
            "::test_a_hundred_topics_of_a_request_are_one_entry_of_the_metadata_log",
        ),
        is_quick=True,
    ),
    Plant(
        "a start goes on with the numbers of the round that was cut off",
        "S23",
        "storage/recovery.py",
        "        next_sequence=sequence + 1 + RESTART_GAP,\n",
        "        next_sequence=sequence + 1,\n",
        ("tests/unit/storage/test_metadata_first.py::test_a_torn_round_that_comes_back_hides_nothing",),
        is_quick=True,
    ),
    Plant(
        "the leader's own disk does not move the watermark",
        "S24",
        "replication/replica.py",
        "        if self.leader_id == self.node_id:\n            self._move_watermark()\n        else:\n",
        "        if self.leader_id == self.node_id:\n            pass\n        else:\n",
        (
            "tests/unit/server/test_time_out_zero.py::test_a_partition_without_followers_takes_what_it_is_sent",
        ),
        is_quick=True,
    ),
    Plant(
        "WAL ports of a local cluster begin elsewhere",
        "S27",
        "local/layout.py",
        "    wal: int = 9291\n",
        "    wal: int = 9191\n",
        ("tests/unit/local/test_layout.py::test_ports_as_in_the_manual",),
        is_quick=True,
    ),
    Plant(
        "logs of a local cluster are not found where the scripts say",
        "S27",
        "tests/cluster/start.sh",
        '    ln -sfn "$data/node$node/node.log" "$here/logs/node$node.log"\n',
        '    ln -sfn "$data/node$node/log" "$here/logs/node$node.log"\n',
        ("tests/cluster/test_tools.py::test_the_scripts",),
    ),
    Plant(
        "retention takes what is above the watermark",
        "L03",
        "storage/retention.py",
        "        if segment.size_bytes == 0 or segment.next_offset > high_watermark:\n",
        "        if segment.size_bytes == 0:\n",
        ("tests/unit/storage/test_retention.py::test_retention_keeps_what_it_must_and_nothing_it_need_not",),
        is_quick=True,
    ),
    Plant(
        "compaction keeps the first record of a key",
        "L03",
        "storage/keymap.py",
        "            offsets[key] = base_offset + delta\n",
        "            offsets.setdefault(key, base_offset + delta)\n",
        ("tests/unit/storage/test_compaction.py::test_only_the_last_record_of_each_key_stays_where_it_was",),
        is_quick=True,
    ),
    Plant(
        "a producer of an older epoch goes on in the transaction",
        "L04",
        "transactions/transaction.py",
        "        if producer_epoch != self.record.producer_epoch:\n",
        "        if producer_epoch > self.record.producer_epoch:\n",
        ("tests/unit/transactions/test_transaction.py::test_init_raises_the_epoch_and_fences",),
        is_quick=True,
    ),
    Plant(
        "a transaction times out and its producer goes on",
        "L04",
        "transactions/transaction.py",
        "        return self._fence(now_ms, new_producer_id)\n\n    def is_expired",
        "        return self._prepare(commit=False, now_ms=now_ms)\n\n    def is_expired",
        ("tests/unit/transactions/test_transaction.py::test_a_time_out_aborts_and_fences",),
        is_quick=True,
    ),
    Plant(
        "an idle partition may take any memory",
        "L05",
        "bench/partitions.py",
        "    if each > IDLE_KB_MAX:\n",
        "    if each < 0:\n",
        ("tests/unit/test_bench_bars.py::test_idle_partitions_that_cost_too_much_are_named",),
        is_quick=True,
    ),
    Plant(
        "a commit round may sync once for each partition",
        "L05",
        "bench/partitions.py",
        "        if count > SYNCS_MAX\n",
        "        if count < 0\n",
        ("tests/unit/test_bench_bars.py::test_a_round_with_a_sync_for_each_partition_is_named",),
        is_quick=True,
    ),
    Plant(
        "readers of history may hurt a producer as they like",
        "L05",
        "bench/history.py",
        "    return missed + above(quiet, busy, RATIOS_MAX)\n",
        "    return missed\n",
        ("tests/unit/test_bench_bars.py::test_readers_of_history_that_hurt_are_named",),
        is_quick=True,
    ),
    Plant(
        "a node that lost its checkpoints starts from nothing",
        "L02",
        "storage/recovery.py",
        "            if lost := what_is_lost(self.disk, self.root):\n",
        "            if lost := what_is_lost(self.disk, self.root)[:0]:\n",
        (
            "tests/unit/storage/test_lost_checkpoint.py"
            "::test_without_a_checkpoint_and_the_start_of_the_wal_a_node_does_not_start",
            "tests/crash/test_damage.py::test_a_node_that_lost_both_checkpoints_refuses_to_start",
        ),
        is_quick=True,
    ),
    Plant(
        "a load move is applied whatever was changed since it was planned",
        "S28",
        "cluster/load_balancer.py",
        "            partition_epoch=partition.partition_epoch if is_checked else None,\n",
        "            partition_epoch=None,\n",
        (
            "tests/unit/cluster/test_load_balancer.py"
            "::test_an_operators_move_that_is_not_applied_yet_is_not_replaced",
        ),
        is_quick=True,
    ),
)
