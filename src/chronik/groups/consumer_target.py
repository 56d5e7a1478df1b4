"""Which partitions each member of a consumer group (KIP-848) should have: the target assignment. Pure.

`target` is the group's present target. `is_filtered` says that ACLs decide which topics members see.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Collection, Mapping

from chronik.groups.assignors import ASSIGNORS, Partitions
from chronik.groups.consumer_member import ConsumerMember
from chronik.groups.subscriptions import Topics, held_matches


def regex_matches(
    member: ConsumerMember, topics: Topics, target: Mapping[str, Partitions], *, is_filtered: bool
) -> frozenset[str]:
    """The topics that the member's regex matches and that it may see."""
    matched = topics.matched[member.topic_regex or ""]
    if member.visible is not None:
        return member.visible(matched)
    return held_matches(matched, target, topics) if is_filtered else matched


def subscribed_names(
    members: Collection[ConsumerMember],
    topics: Topics,
    target: Mapping[str, Partitions],
    *,
    is_filtered: bool,
) -> dict[str, frozenset[str]]:
    """For each member the existing topics that it wants: those it names, and those that its regex matches."""
    names = {}
    for member in members:
        wanted = frozenset(name for name in member.topic_names if name in topics.by_name)
        if member.topic_regex:
            wanted |= regex_matches(member, topics, target, is_filtered=is_filtered)
        names[member.member_id] = wanted
    return names


def topics_hash(names: frozenset[str], topics: Topics) -> int:
    """Hash of these topics' ids and partition counts; when it changes, the group needs a new target."""
    seen = sorted((name, *topics.by_name[name]) for name in names)
    return int.from_bytes(hashlib.blake2b(repr(seen).encode(), digest_size=7).digest(), "big")


def choose_assignor(members: Collection[ConsumerMember], default: str) -> str:
    """The one that most members ask for."""
    votes = Counter(member.server_assignor for member in members if member.server_assignor is not None)
    return votes.most_common(1)[0][0] if votes else default


def compute_target(
    assignor: str,
    names: Mapping[str, frozenset[str]],
    topics: Topics,
    target: Mapping[str, Partitions],
) -> dict[str, Partitions]:
    """The new target of members that want these topics (`subscribed_names`)."""
    subscriptions = {
        member_id: frozenset(topics.by_name[name].topic_id for name in wanted)
        for member_id, wanted in names.items()
    }
    wanted_ids = frozenset().union(*subscriptions.values())
    counts = {
        info.topic_id: info.partition_count for info in topics.by_name.values() if info.topic_id in wanted_ids
    }
    return ASSIGNORS[assignor](subscriptions, counts, target)
