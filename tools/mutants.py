"""Does anybody notice? Plants one known bug at a time in a copy of the source, then runs seeds.

A mutant that survives is a hole in the simulator. `--seeds` bounds the search; `--only NAME` picks mutants,
and `--part 1/2` every second one, for two runs beside each other.
After them come the bugs of `plants.py`, which tests must notice.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))
from tools.plants import PLANTS, BrokenPlantError, Plant, unnoticed  # noqa: E402

SOURCE = Path(__file__).parents[1] / "src"


class Mutant(NamedTuple):
    name: str
    scenario: str
    file: str
    text: str
    replacement: str
    failure: str = ""
    """The row of the table of failures (docs/TESTING.md) that this is."""
    is_quick: bool = False
    """A few seeds are enough, so that `make test` can plant it too."""
    tests: tuple[str, ...] = ()
    """Tests of its row that must notice it too."""


MUTANTS = (
    Mutant(
        "a local copy goes before the object store has it",
        "tiered",
        "cleaning/cleaner.py",
        "    limit = min(partition.high_watermark, 0 if remote is None else remote.end_offset)\n",
        "    limit = partition.high_watermark\n",
        is_quick=True,
    ),
    Mutant(
        "objects that count are removed",
        "tiered",
        "tiering/retention.py",
        "written_in <= epoch and name not in named\n",
        "written_in <= epoch\n",
        is_quick=True,
    ),
    Mutant(
        "the tag of a frame is not checked",
        "strangers",
        "links/seal.py",
        "            Poly1305.verify_tag(key, content, tag)\n",
        "            pass\n",
        is_quick=True,
    ),
    Mutant(
        "the number of a frame is not checked",
        "strangers",
        "links/seal.py",
        '_number: Final = struct.Struct(">Q").pack',
        '_number: Final = lambda _count: struct.pack(">Q", 0)',
        is_quick=True,
    ),
    Mutant(
        "who is no member may have commands forwarded",
        "strangers",
        "cluster/receiver.py",
        "            self._check_membership(link.peer_id, data)\n            if not",
        "            if not",
        is_quick=True,
    ),
    Mutant(
        "whoever has a link may lead",
        "strangers",
        "cluster/receiver.py",
        "if self._known.admits(message):",
        "if True:",
        is_quick=True,
    ),
    Mutant(
        "the secret passes for any node",
        "strangers",
        "links/handshake.py",
        "if registered and registered != public_key:",
        "if False:",
        is_quick=True,
    ),
    Mutant(
        "a rebalance does not see which nodes share a machine",
        "shards",
        "cluster/operations.py",
        "Slot(one.broker_id, one.rack) for one",
        "Slot(one.broker_id) for one",
    ),
    Mutant(
        "the watermark ignores followers",
        "cluster",
        "replication/watermark_rule.py",
        "lowest = min(lowest, follower_ends.get(replica, current))",
        "pass",
    ),
    Mutant(
        "a follower shows more than it has on disk",
        "cluster",
        "replication/watermark_rule.py",
        "return max(current, min(leader_high_watermark, own_durable_end))",
        "return max(current, leader_high_watermark)",
    ),
    Mutant(
        "no truncation when the leader changes",
        "cluster",
        "replication/replica.py",
        "            log_.truncate(offset)\n",
        "            pass\n",
        failure="T12",
        is_quick=True,
        tests=("tests/cluster/test_failover.py::test_a_leader_cut_off_from_the_others_acknowledges_nothing",),
    ),
    Mutant(
        "logs are compared by their ends only",
        "cluster",
        "replication/truncation_point.py",
        "and ours[agreed] == theirs[agreed]:",
        "and True:",
        failure="T12",
        tests=(
            "tests/unit/replication/test_truncation_point.py::test_what_a_follower_keeps_is_what_the_leader_has_or_had",
        ),
    ),
    Mutant(
        "an opening before its metadata is dropped",
        "cluster",
        "replication/follower.py",
        "        self._early[head.key] = _Early(",
        "        return\n        self._early[head.key] = _Early(",
        failure="T02",
        is_quick=True,
        tests=(
            "tests/unit/replication/test_early.py::test_it_is_answered_in_the_turn_in_which_its_metadata_arrives",
        ),
    ),
    Mutant(
        "links send no sign of life",
        "cluster",
        "links/link.py",
        "self._timer = self._loop.call_later(BEAT_SECONDS, self._beat)\n        handler.on_open(self)",
        "handler.on_open(self)",
    ),
    Mutant(
        "a refused connection is never tried again",
        "cluster",
        "links/connections.py",
        "            self._hurry.clear()\n",
        "            return\n            self._hurry.clear()\n",
        failure="T03",
        is_quick=True,
        tests=(
            "tests/unit/links/test_link.py::test_a_peer_that_refuses_is_tried_at_once_and_then_every_second_with_jitter",
            "tests/cluster/test_start.py::test_nodes_start_in_any_order_with_pauses",
        ),
    ),
    Mutant(
        "any follower comes back into the ISR at once",
        "cluster",
        "replication/isr.py",
        "return progress.acked_end >= max(high_watermark, leader_epoch_start_offset)",
        "return True",
    ),
    Mutant(
        "leaders are elected from all replicas",
        "cluster",
        "metadata/elections.py",
        "        if replica in isr and is_alive(replica):\n            return replica\n    if topic",
        "        if is_alive(replica):\n            return replica\n    if topic",
        failure="T07",
    ),
    Mutant(
        "a leader that restarts leads on in its old epoch",
        "cluster",
        "metadata/elections.py",
        "    if old.leader == back:\n",
        "    if old.leader == back:\n        return None\n    if old.leader == back:\n",
    ),
    Mutant(
        "a minority commits",
        "cluster",
        "raft/quorum.py",
        "return sorted(map(value_of, voters), reverse=True)[majority(voters) - 1]",
        "return sorted(map(value_of, voters), reverse=True)[0]",
    ),
    Mutant(
        "a minority elects",
        "cluster",
        "raft/quorum.py",
        "if voters and granted >= majority(voters):",
        "if voters and granted >= 1:",
    ),
    Mutant(
        "term and vote are not persisted",
        "cluster",
        "cluster/raft_storage.py",
        "state = hard_state or self.hard_state() or",
        "state = self.hard_state() or",
    ),
    Mutant(
        "two votes in one term",
        "cluster",
        "raft/voting.py",
        "return core.vote == request.sender or (core.vote is None and core.leader_id is None)",
        "return True",
    ),
    Mutant(
        "the metadata log is not truncated",
        "cluster",
        "cluster/raft_storage.py",
        "            self._log.truncate(truncate_from - 1)\n",
        "            pass\n",
    ),
    Mutant(
        "acks=all answers with the leader's own disk",
        "cluster",
        "replication/partition.py",
        "            if next_offset <= self.high_watermark:\n                callback(None)",
        "            if next_offset:\n                callback(None)",
    ),
    Mutant(
        "records are acknowledged before they are durable",
        "storage",
        "replication/partition.py",
        "elif next_offset <= self.log.durable_end_offset:",
        "elif next_offset <= self.log.log_end_offset:",
        failure="T10",
    ),
    Mutant(
        "a produce request overtakes one that waits",
        "cluster",
        "server/handlers/produce.py",
        "elif queue.is_busy or missing_topics",
        "elif missing_topics",
        is_quick=True,
    ),
    Mutant(
        "a place in the queue of produce requests is taken one turn late",
        "cluster",
        "server/produce_queue.py",
        "        self.is_busy = True\n",
        '        asyncio.get_running_loop().call_soon(setattr, self, "is_busy", True)\n',
    ),
    Mutant(
        "a known request is answered before it is durable",
        "cluster",
        "server/handlers/produce.py",
        "partition.when_acked(next_offset, acks, pending._acked)",
        "pending._acked(None)",
        failure="T10",
    ),
    Mutant(
        "a repeated sequence is appended again",
        "storage",
        "storage/producer_state.py",
        "                    return span\n            expected",
        "                    return None\n            expected",
        failure="T18",
    ),
    Mutant(
        "aborted transactions are forgotten on restart",
        "storage",
        "storage/producer_state.py",
        "states._aborted = snapshot.aborted",
        "states._aborted = []",
        failure="T17",
    ),
    Mutant(
        "read_committed sees open transactions",
        "storage",
        "storage/producer_state.py",
        "return high_watermark if first is None or first > high_watermark else first",
        "return high_watermark",
        failure="T17",
        tests=(
            "tests/compat/test_transactions.py::test_only_committed_records_are_read_by_those_who_ask_for_it",
        ),
    ),
    Mutant(
        "the WAL is not synced",
        "storage",
        "storage/wal_writer.py",
        "            if is_synced:\n                file.sync()\n",
        "",
    ),
    Mutant(
        "a checkpoint does not sync segments",
        "storage",
        "storage/store.py",
        "                segment.sync()\n",
        "                pass\n",
    ),
    Mutant(
        "the names of new directories are not synced",
        "storage",
        "storage/store.py",
        '    disk.sync_directory(root / "topics")\n',
        "",
    ),
    Mutant(
        "what recovery read back is not made durable",
        "storage",
        "storage/recovery.py",
        "        store.save_recovered()\n",
        "        pass\n",
    ),
    Mutant(
        "a torn round stays in the WAL",
        "torn",
        "storage/recovery.py",
        "                    file.truncate(scanner.torn_at)\n                    file.sync()\n",
        "                    pass\n",
    ),
    Mutant(
        "appends from before a cut count",
        "cluster",
        "storage/log.py",
        "        self._appends = self._appends.retire()\n        self.retirement.forget_checkpoints()\n",
        "        self.retirement.forget_checkpoints()\n",
    ),
    Mutant(
        "a follower whose disk failed keeps silent",
        "cluster",
        "replication/replica.py",
        "        else:\n            self._reset_feeder()\n",
        "",
        failure="T11",
        tests=("tests/unit/replication/test_follower.py::test_a_disk_that_failed_asks_to_be_fed_again",),
    ),
    Mutant(
        "a follower is fed past a batch in which the log starts",
        "cluster",
        "storage/reading.py",
        "        if first != offset:\n",
        "        if True:\n",
    ),
    Mutant(
        "a failed round is not taken back",
        "storage",
        "storage/log.py",
        "        self._cut_tail(self.durable_end_offset)\n        for listener",
        "        for listener",
    ),
    Mutant(
        "recovery appends a batch twice",
        "storage",
        "storage/recovery.py",
        "            log_.cut(offset)\n        elif offset > log_.log_end_offset:",
        "            pass\n        elif offset > log_.log_end_offset:",
    ),
    Mutant(
        "the watermark freezes at offset 1,664",
        "cluster",
        "replication/watermark_rule.py",
        "    return max(lowest, current)\n",
        "    return max(min(lowest, 1_664), current)\n",
        failure="T01",
        tests=("tests/cluster/test_produce.py::test_the_watermark_follows_whatever_acks_asks",),
    ),
    Mutant(
        "no peer is dialed",
        "cluster",
        "cluster/peer_links.py",
        "for peer, at in configured.items() if peer != identity.node_id}",
        "for peer, at in configured.items() if peer == -1}",
        failure="T04",
        is_quick=True,
        tests=(
            "tests/unit/cluster/test_peer_links.py::test_every_configured_peer_is_dialed_for_data_metadata_and_raft",
        ),
    ),
    Mutant(
        "a node keeps only the topics that it was asked for",
        "cluster",
        "metadata/store.py",
        "            outcome = self.state.apply(entry.command, committed.index)\n",
        "            before = dict(self.state.topics)\n"
        "            outcome = self.state.apply(entry.command, committed.index)\n"
        "            if entry.origin != self._origin and len(before) > 1:\n"
        "                self.state.topics = before\n",
        failure="T05",
        is_quick=True,
        tests=("tests/cluster/test_topics.py::test_nodes_hold_the_same_topics",),
    ),
    Mutant(
        "the watermark counts what the leader has not on disk",
        "cluster",
        "replication/replica.py",
        "own = self.log.durable_end_offset\n",
        "own = self.log.log_end_offset\n",
        failure="T10",
        is_quick=True,
    ),
    Mutant(
        "a full window drops what does not fit",
        "cluster",
        "replication/feed.py",
        "        if cursor.sent_log_start < log_.log_start_offset:\n",
        "        if cursor.in_flight_bytes >= self._window_bytes:\n"
        "            cursor.next_offset = log_.log_end_offset\n"
        "        if cursor.sent_log_start < log_.log_start_offset:\n",
        failure="T11",
        is_quick=True,
        tests=(
            "tests/unit/replication/test_follower_reports.py::test_a_full_window_holds_batches_back_and_skips_none",
        ),
    ),
    Mutant(
        "a window that opens again is not used",
        "cluster",
        "replication/follower_reports.py",
        "                    if cursor.next_offset < partition.log.log_end_offset:\n",
        "                    if False:\n",
        failure="T11",
    ),
    Mutant(
        "the watermark freezes early",
        "cluster",
        "replication/watermark_rule.py",
        "    return max(lowest, current)\n",
        "    return max(min(lowest, 16), current)\n",
        failure="T01",
        is_quick=True,
    ),
    Mutant(
        "a refused connection is tried again after 30 s",
        "cluster",
        "links/connections.py",
        "timeout(min(wait, RETRY_SECONDS) +",
        "timeout((30.0 if failures else wait) +",
        failure="T03",
        is_quick=True,
        tests=(
            "tests/unit/links/test_link.py::test_a_peer_that_refuses_is_tried_at_once_and_then_every_second_with_jitter",
        ),
    ),
    Mutant(
        "the first replica leads, alive or not",
        "cluster",
        "metadata/elections.py",
        "        if replica in isr and is_alive(replica):\n            return replica\n    if topic",
        "        return replica\n    if topic",
        failure="T07",
        is_quick=True,
        tests=("tests/unit/metadata/test_state.py::test_fencing_elects_another_leader_out_of_the_isr",),
    ),
    Mutant(
        "the last stable offset stays where a transaction began",
        "storage",
        "storage/producer_state.py",
        "marker_offset >= high_watermark]\n            self._find_first_unstable()\n",
        "marker_offset >= high_watermark]\n",
        failure="T17",
        is_quick=True,
    ),
    Mutant(
        "a batch that is not committed yet is not known to the sequence check",
        "cluster",
        "replication/partition.py",
        "        if span is None:\n",
        "        if span is None or span.base_offset >= self.high_watermark:\n",
        failure="T18",
        is_quick=True,
    ),
    Mutant(
        "a damaged replica is never repaired",
        "rot",
        "replication/repair.py",
        "        if not partition.is_damaged:\n            return  # removed",
        "        if True:\n            return  # removed",
        is_quick=True,
    ),
    Mutant(
        "a repaired replica keeps its damaged segments",
        "rot",
        "replication/manager.py",
        "        if offset > log_.log_start_offset:\n            log_.truncate(offset)\n",
        "        if True:\n            pass\n",
    ),
    Mutant(
        "readers are led past damage that another replica could mend",
        "rot",
        "storage/reading.py",
        "        if log_.will_be_repaired(damage):\n",
        "        if False:\n",
        is_quick=True,
    ),
    Mutant(
        "damaged bytes are served",
        "rot",
        "storage/reading.py",
        "        data = segment.read_sound(position, size, end_offset, is_strict=not past_damage)\n",
        "        data = segment.file.read_at(position, size)\n",
    ),
    Mutant(
        "every tick without news opens a term",
        "cluster",
        "raft/core.py",
        "self.election_timeout = ticks + self.config.random_ticks(ticks)\n",
        "self.election_timeout = 1\n",
        failure="T13",
        is_quick=True,
        tests=("tests/unit/raft/test_5_1_terms.py::test_unordered_sends_do_not_make_terms_explode",),
    ),
    Mutant(
        "relaxed: a round is acknowledged before it is written",
        "relaxed",
        "storage/log.py",
        " base_offset, batch, self._appends, end, within\n        )\n",
        " base_offset, batch, self._appends, end, within\n        )\n"
        "        if self.config.sync_within_seconds:\n"
        "            self._appends.written(self.log_end_offset)\n",
        is_quick=True,
    ),
    Mutant(
        "relaxed: the timer of the sync never fires",
        "relaxed",
        "storage/unsynced.py",
        "        self.due = min(self.due, now + within * DUE_SHARE)\n",
        "",
    ),
    Mutant(
        "relaxed: an internal topic is relaxed",
        "relaxed",
        "metadata/durability.py",
        "return SYNCED if is_internal_topic(name) else durability",
        "return DurabilityPromise(1000, 1000) if is_internal_topic(name) else durability",
        is_quick=True,
    ),
    Mutant(
        "relaxed: segments are written before the WAL is synced",
        "relaxed",
        "storage/log.py",
        "runs_to_write(self.tail, self.flushed_offset, self.synced_end_offset)",
        "runs_to_write(self.tail, self.flushed_offset, self.durable_end_offset)",
        is_quick=True,
    ),
    Mutant(
        "relaxed: the end of a transaction is not synced",
        "relaxed",
        "storage/relaxed.py",
        "if attributes & CONTROL_MASK or unsynced",
        "if unsynced",
    ),
    Mutant(
        "relaxed: who lost power stays in sync",
        "relaxed",
        "metadata/elections.py",
        "    if back in old.isr and len(old.isr) > 1:\n",
        "    if False:\n",
    ),
    Mutant(
        "relaxed: a watermark outlives the records below it",
        "relaxed",
        "replication/replica.py",
        "            self._forget_watermark_behind(offset)\n",
        "            pass\n",
    ),
)


class BrokenMutantError(Exception):
    """The simulator could not run with this bug, so no seed judged it."""


def plant(mutant: Mutant, folder: Path) -> None:
    """A copy of the source with the bug in it. Fails when the source no longer has the place."""
    shutil.copytree(SOURCE, folder, ignore=shutil.ignore_patterns("__pycache__"))
    path = folder / "chronik" / mutant.file
    text = path.read_text()
    if text.count(mutant.text) != 1:
        raise SystemExit(
            f"mutant {mutant.name!r}: its place in {mutant.file} is there {text.count(mutant.text)} times"
        )
    path.write_text(text.replace(mutant.text, mutant.replacement))


def is_caught(mutant: Mutant, seeds: int) -> str | None:
    """The line that tells which seed failed and why, or None."""
    with tempfile.TemporaryDirectory() as folder:
        plant(mutant, Path(folder) / "src")
        command = [sys.executable, "-m", "chronik.sim", "--scenario", mutant.scenario]
        env = {**os.environ, "PYTHONPATH": str(Path(folder) / "src"), "PYTHONHASHSEED": "0"}
        run = subprocess.run(
            [*command, "--seeds", str(seeds), "--fail-fast"],
            env=env,
            capture_output=True,
            text=True,
            check=False,
        )
    return judge(run.stdout, run.stderr, run.returncode)


def judge(out: str, errors: str, code: int) -> str | None:
    """The line of a seed that failed, or None. A simulator that ended without one broke by itself: that
    shows nothing about the bug."""
    failed = [line for line in out.splitlines() if " failed: " in line]
    if failed:
        return failed[0]
    if code:
        raise BrokenMutantError((errors.strip().splitlines() or [f"exit code {code}"])[-1])
    return None


def survives(mutant: Mutant, seeds: int) -> str:
    """Who did not notice it; empty if every one did."""
    try:
        caught = is_caught(mutant, seeds)
        passed = unnoticed(plant_of(mutant)) if mutant.tests else []
    except (BrokenMutantError, BrokenPlantError) as error:
        return f"BROKEN: {error}"
    if caught:
        print(f"         {mutant.name}: {caught}", flush=True)
    return " ".join([*([] if caught else [f"{seeds} seeds"]), *passed])


def plant_of(mutant: Mutant) -> Plant:
    """The same bug for the tests of its row."""
    return Plant(mutant.name, mutant.failure, mutant.file, mutant.text, mutant.replacement, mutant.tests)


def survives_its_tests(one: Plant) -> str:
    try:
        return " ".join(unnoticed(one))
    except BrokenPlantError as error:
        return f"BROKEN: {error}"


def part(text: str) -> tuple[int, int]:
    first, _, count = text.partition("/")
    if not (first.isdecimal() and count.isdecimal() and 1 <= int(first) <= int(count)):
        raise argparse.ArgumentTypeError("two numbers, such as 1/2")
    return int(first), int(count)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=600)
    parser.add_argument("--only", help="a part of the names of the mutants to run")
    parser.add_argument(
        "--part", type=part, default=(1, 1), metavar="K/N", help="every Nth of them, from the Kth on"
    )
    given = parser.parse_args()
    judged = [
        *((mutant.name, partial(survives, mutant, given.seeds)) for mutant in MUTANTS),
        *((one.name, partial(survives_its_tests, one)) for one in PLANTS),
    ]
    first, count = given.part
    chosen = [each for each in judged if given.only is None or given.only in each[0]][first - 1 :: count]
    survivors = []
    for name, judge_it in chosen:
        passed = judge_it()
        print(f"{'SURVIVED' if passed else 'caught  '} {name} {passed}".rstrip(), flush=True)
        survivors += [name] * bool(passed)
    caught = len(chosen) - len(survivors)
    print(f"mutants {len(chosen)}, caught {caught}, survived {len(survivors)}")
    return int(bool(survivors))


if __name__ == "__main__":
    sys.exit(main())
