"""Topics of two clusters side by side: what is to be moved, what stands in its way, how the new side is made.

The new topics are made with the old ones' partitions and configs before the first record is copied.
MirrorMaker would leave some configs out (`min.insync.replicas`), and know nothing of what the old brokers'
own defaults mean for a topic (a `log.retention.hours` of theirs).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from chronik.cli.client import CommandFailed
from chronik.cli.migrate_config import Choice
from chronik.metadata.topic_config import TIERING_CONFIGS
from chronik.model import ErrorCode, RequestError, TopicPartition
from chronik.words import counted

if TYPE_CHECKING:
    from chronik.client import Cluster
    from chronik.client.admin import ConfigEntry

AFTERWARDS: Final = (
    "message.timestamp.type",
    "message.timestamp.before.max.ms",
    "message.timestamp.after.max.ms",
    "message.timestamp.difference.max.ms",
)
"""Set by `migrate finish`: on a topic that is being copied they would change or refuse old records."""
NOT_COPIED: Final = frozenset(
    {
        "leader.replication.throttled.replicas",
        "follower.replication.throttled.replicas",
        *TIERING_CONFIGS,
    }
)
"""They are about the old cluster's nodes and its tiered storage."""
_AT_ONCE: Final = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class OldTopic:
    name: str
    partitions: int
    configs: Mapping[str, str]
    """What is set for the topic."""
    holding: Mapping[str, str]
    """What holds for it without that: Kafka calls it a default even where the brokers' own settings say so
    (`log.retention.hours`)."""
    starts: Mapping[int, int]
    ends: Mapping[int, int]
    """Where the committed records end."""

    @property
    def offsets(self) -> int:
        return sum(end - self.starts[number] for number, end in self.ends.items())

    @property
    def is_compacted(self) -> bool:
        return "compact" in self.configs.get("cleanup.policy", self.holding.get("cleanup.policy", ""))

    def tps(self) -> list[TopicPartition]:
        return [TopicPartition(self.name, number) for number in range(self.partitions)]


async def old_topics(old: Cluster, topics: Choice) -> list[OldTopic]:
    """Every topic that is to be moved, with its configs and where it begins and ends now."""
    from chronik.client.admin import Admin
    from chronik.client.offsets import EARLIEST, LATEST, list_offsets

    admin = Admin(old)
    infos = [info for info in await admin.list_topics() if topics.takes(info.name)]
    tps = [TopicPartition(info.name, number) for info in infos for number in sorted(info.partitions)]
    ends = await list_offsets(old, dict.fromkeys(tps, LATEST), read_committed=True)
    starts = await list_offsets(old, dict.fromkeys(tps, EARLIEST))
    found = []
    for info in infos:
        configs = await admin.describe_config("topic", info.name)
        here = [tp for tp in tps if tp.topic == info.name]
        found.append(
            OldTopic(
                name=info.name,
                partitions=len(info.partitions),
                configs=_values(one for one in configs if not one.is_default),
                holding=_values(one for one in configs if one.is_default),
                starts={tp.partition: starts[tp].offset for tp in here},
                ends={tp.partition: max(ends[tp].offset, starts[tp].offset) for tp in here},
            )
        )
    return found


def _values(entries: Iterable[ConfigEntry]) -> dict[str, str]:
    return {
        entry.name: entry.value
        for entry in entries
        if entry.value is not None and entry.name not in NOT_COPIED
    }


async def refuse_same_cluster(old: Cluster, new: Cluster) -> None:
    ids = [(await side.describe()).cluster_id for side in (old, new)]
    if ids[0] == ids[1]:
        raise CommandFailed(
            "--from and --bootstrap name the same cluster: --from is the one to move away from"
        )


async def in_the_way(new: Cluster, wanted: Iterable[OldTopic], copied: Iterable[str]) -> list[str]:
    """Topics of the new side that a migration must not write to; `copied` are those that one has begun."""
    from chronik.client.offsets import LATEST, list_offsets

    known, begun = await new.topics(), set(copied)
    found = []
    for topic in wanted:
        info = known.get(topic.name)
        if info is None or topic.name in begun:
            continue
        tps = [TopicPartition(topic.name, number) for number in info.partitions]
        ends = await list_offsets(new, dict.fromkeys(tps, LATEST))
        if any(end.offset for end in ends.values()):
            found.append(
                f"{topic.name} has records on the new side that are not of this migration: delete it there, "
                "or leave it out with --topics"
            )
        if len(info.partitions) > topic.partitions:
            found.append(
                f"{topic.name} has {counted(len(info.partitions), 'partition')} on the new side and "
                f"{topic.partitions} on the old one: delete it there"
            )
    return found


async def make_topics(new: Cluster, wanted: Iterable[OldTopic], replication_factor: int) -> list[str]:
    """Make what is missing on the new side, partitions and configs too; returns what could not be set."""
    from chronik.client.admin import Admin, NewTopic

    admin = Admin(new)
    known = await new.topics()
    topics = list(wanted)
    missing = [topic for topic in topics if topic.name not in known]
    for at in range(0, len(missing), _AT_ONCE):
        some = missing[at : at + _AT_ONCE]
        made = await admin.create_topics(
            [
                NewTopic(name=one.name, partitions=one.partitions, replication_factor=replication_factor)
                for one in some
            ]
        )
        for result in made:
            is_there = isinstance(result, RequestError) and result.code == ErrorCode.topic_already_exists
            if isinstance(result, RequestError) and not is_there:
                raise CommandFailed(f"the new side refuses a topic: {result}")
    refused = []
    for topic in topics:
        info = known.get(topic.name)
        if info is not None and len(info.partitions) < topic.partitions:
            await admin.create_partitions(topic.name, topic.partitions)
        refused += await set_configs(new, topic, afterwards=False)
    return refused


async def set_configs(new: Cluster, topic: OldTopic, *, afterwards: bool) -> list[str]:
    """Give the new topic the old one's configs, where they differ; returns what was refused."""
    from chronik.client.admin import Admin

    refused = []
    for name, value, _ in await config_differences(new, topic):
        if (name in AFTERWARDS) != afterwards:
            continue
        try:
            await Admin(new).alter_config("topic", topic.name, {name: value})
        except RequestError as error:
            refused.append(f"{topic.name}: {name}={value} is refused by the new side ({error})")
    return refused


async def config_differences(new: Cluster, topic: OldTopic) -> list[tuple[str, str, str | None]]:
    """Name, value on the old side and value on the new side of each config that does not agree."""
    from chronik.client.admin import Admin
    from chronik.metadata.durability import FLUSH_CONFIGS

    entries = await Admin(new).describe_config("topic", topic.name)
    there = {one.name: one.value for one in entries}
    # The old brokers' flush interval bounds what a power cut takes; on the new topic it would allow that.
    used = {one.name for one in entries if one.has_effect}.difference(FLUSH_CONFIGS)
    wanted = {**{name: value for name, value in topic.holding.items() if name in used}, **topic.configs}
    return [(name, value, there.get(name)) for name, value in wanted.items() if there.get(name) != value]
