"""KIP-848 groups: every refusal by name, assignors, records, and random crowds that must agree in the end."""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chronik.groups.assignors import ASSIGNORS, Partitions, assign_range, assign_uniform
from chronik.groups.consumer_group import ConsumerGroup
from chronik.groups.consumer_member import MemberState
from chronik.groups.consumer_messages import ConsumerGroupConfig, ConsumerHeartbeat, HeartbeatResult
from chronik.groups.patterns import PatternWork, TopicPatterns
from chronik.groups.records import PartKey, apply_part, decode_key, encode_key, encode_part
from chronik.groups.subscriptions import Topics, TopicSize
from chronik.model import ErrorCode, RequestError

T1, T2 = UUID(int=101), UUID(int=102)
TOPICS = Topics(1, {"one": TopicSize(T1, 4), "two": TopicSize(T2, 2)})
CONFIG = ConsumerGroupConfig(session_timeout_ms=10_000)


def matching(g: ConsumerGroup, topics: Topics, regex: object) -> Topics:
    """The topics as the coordinator hands them to a group with patterns."""
    matched = {}
    for one in g.patterns() | ({str(regex)} if regex else set()):
        work = TopicPatterns().find(one, topics.by_name)
        assert isinstance(work, PatternWork)
        matched[one] = work.run(lambda: 0.0)
    return replace(topics, matched=matched)


def part(topic: UUID, *indexes: int) -> Partitions:
    return frozenset((topic, index) for index in indexes)


def group(**changes: int) -> ConsumerGroup:
    return ConsumerGroup("g", ConsumerGroupConfig(**{"session_timeout_ms": 10_000, **changes}))


def join(
    g: ConsumerGroup, member_id: str, *, names: tuple[str, ...] = ("one",), **more: object
) -> HeartbeatResult:
    values: dict[str, object] = {"rebalance_timeout_ms": 30_000, "owned": frozenset(), **more}
    now_ms = values.pop("now_ms", 0)
    topics = values.pop("topics", TOPICS)
    beat = ConsumerHeartbeat(member_id=member_id, member_epoch=0, topic_names=names, **values)  # type: ignore[arg-type]
    topics = matching(g, topics, more.get("topic_regex"))  # type: ignore[arg-type]
    return g.heartbeat(beat, topics, now_ms=now_ms)  # type: ignore[arg-type]


def beat(
    g: ConsumerGroup, member_id: str, epoch: int, owned: Partitions | None = None, **more: object
) -> HeartbeatResult:
    now_ms, topics = more.pop("now_ms", 0), more.pop("topics", TOPICS)
    request = ConsumerHeartbeat(member_id=member_id, member_epoch=epoch, owned=owned, **more)  # type: ignore[arg-type]
    topics = matching(g, topics, more.get("topic_regex"))  # type: ignore[arg-type]
    return g.heartbeat(request, topics, now_ms=now_ms)  # type: ignore[arg-type]


def refused(code: ErrorCode, act: object, *args: object, **kwargs: object) -> None:
    with pytest.raises(RequestError) as caught:
        act(*args, **kwargs)  # type: ignore[operator]
    assert caught.value.code is code


def test_the_first_member_gets_everything() -> None:
    g = group()
    result = join(g, "a")
    assert (result.member_epoch, result.assignment) == (1, part(T1, 0, 1, 2, 3))
    assert beat(g, "a", 1).assignment is None
    assert g.state_name() == "Stable"


def test_partitions_are_given_up_before_they_are_given_out() -> None:
    g = group()
    everything = join(g, "a").assignment
    second = join(g, "b")
    assert (second.member_epoch, second.assignment) == (2, frozenset())
    told = beat(g, "a", 1)
    assert told.member_epoch == 1
    assert told.assignment is not None
    assert len(told.assignment) == 2
    assert beat(g, "b", 2).assignment is None  # not yet released
    assert beat(g, "a", 1, everything).member_epoch == 1  # still holds them
    assert beat(g, "a", 1, told.assignment).member_epoch == 2
    given_out = beat(g, "b", 2)
    assert given_out.assignment == part(T1, 0, 1, 2, 3) - told.assignment
    assert g.state_name() == "Stable"


def test_unaffected_members_go_on() -> None:
    g = group()
    join(g, "a", names=("one",))
    join(g, "b", names=("two",))
    result = beat(g, "a", 1, part(T1, 0, 1, 2, 3))
    assert (result.member_epoch, result.assignment) == (2, None)


def test_new_partitions_are_handed_out() -> None:
    g = group()
    join(g, "a")
    grown = Topics(2, {"one": TopicSize(T1, 6)})
    assert beat(g, "a", 1, topics=grown).assignment == part(T1, *range(6))
    assert g.epoch == 2


def test_unknown_member_id() -> None:
    g = group()
    refused(ErrorCode.unknown_member_id, beat, g, "nobody", 1)
    refused(ErrorCode.unknown_member_id, beat, g, "nobody", -1)
    refused(ErrorCode.unknown_member_id, beat, g, "nobody", 1, instance_id="i")
    join(g, "a")
    refused(ErrorCode.unknown_member_id, g.check_commit, "nobody", 1)


def test_fenced_member_epoch() -> None:
    g = group()
    join(g, "a")
    refused(ErrorCode.fenced_member_epoch, beat, g, "a", 2)
    join(g, "b", names=("two",))
    join(g, "c", names=("two",))
    beat(g, "a", 1)
    assert beat(g, "a", 1).member_epoch == 3  # the answer may have been lost
    refused(ErrorCode.fenced_member_epoch, beat, g, "a", 2)
    assert join(g, "a").assignment == part(T1, 0, 1, 2, 3)  # what a fenced member does


def test_stale_member_epoch() -> None:
    g = group()
    g.check_commit("", -1)
    join(g, "a")
    g.check_commit("a", 1)
    refused(ErrorCode.stale_member_epoch, g.check_commit, "a", 0)
    refused(ErrorCode.stale_member_epoch, g.check_commit, "a", 2)


def test_invalid_requests() -> None:
    g = group()
    refused(ErrorCode.invalid_request, join, g, "a", rebalance_timeout_ms=-1)
    refused(ErrorCode.invalid_request, join, g, "a", owned=part(T1, 0))
    refused(ErrorCode.invalid_request, join, g, "a", names=None)
    refused(ErrorCode.invalid_request, beat, g, "a", -3)
    refused(ErrorCode.invalid_request, beat, g, "a", -2)
    refused(ErrorCode.unsupported_assignor, join, g, "a", server_assignor="sticky")


def test_group_max_size_reached() -> None:
    g = group(group_size_max=1)
    join(g, "a")
    refused(ErrorCode.group_max_size_reached, join, g, "b")


def test_static_members() -> None:
    g = group()
    assignment = join(g, "a", instance_id="i").assignment
    refused(ErrorCode.unreleased_instance_id, join, g, "b", instance_id="i")
    refused(ErrorCode.fenced_instance_id, beat, g, "b", 1, instance_id="i")
    refused(ErrorCode.fenced_instance_id, beat, g, "b", -1, instance_id="i")
    assert beat(g, "a", -2, instance_id="i").member_epoch == -2
    epoch = g.epoch
    back = join(g, "b", instance_id="i")
    assert back.assignment == assignment
    assert g.epoch == epoch  # no rebalance
    refused(ErrorCode.fenced_instance_id, beat, g, "a", 1, instance_id="i")
    beat(g, "b", -1, instance_id="i")
    assert g.state_name() == "Empty"


def test_a_static_member_that_stays_away_expires() -> None:
    g = group()
    join(g, "a", instance_id="i")
    beat(g, "a", -2, instance_id="i")
    assert g.next_deadline_ms() == 10_000
    assert g.advance(now_ms=10_000) == ["a"]


def test_silent_and_clinging_members_are_removed() -> None:
    g = group()
    join(g, "a")
    join(g, "b", now_ms=0)
    beat(g, "a", 1)
    for now_ms in range(5_000, 30_001, 5_000):
        beat(g, "a", 1, part(T1, 0, 1, 2, 3), now_ms=now_ms)
        if now_ms < 30_000:
            beat(g, "b", 2, now_ms=now_ms)
    assert g.advance(now_ms=30_000) == ["a"]  # was told to give partitions up and never did
    assert beat(g, "b", 2, now_ms=30_001).assignment == part(T1, 0, 1, 2, 3)
    assert g.advance(now_ms=60_000) == ["b"]


def test_regex_subscriptions() -> None:
    g = group()
    assert join(g, "a", names=None, topic_regex="t.*").assignment == part(T2, 0, 1)
    more = Topics(2, {**TOPICS.by_name, "three": TopicSize(UUID(int=103), 1)})
    assert beat(g, "a", 1, topics=more).assignment == part(T2, 0, 1) | part(UUID(int=103), 0)


def test_a_regex_matches_what_its_member_may_see() -> None:
    """Also while another member's heartbeat makes the target; a change counts with the next heartbeat."""
    g, hidden = group(), {"two"}

    def visible(topics: frozenset[str]) -> frozenset[str]:
        return topics - hidden

    def all_of_them(topics: frozenset[str]) -> frozenset[str]:
        return topics

    assert join(g, "a", names=None, topic_regex=".*", visible=visible).assignment == part(T1, 0, 1, 2, 3)
    assert join(g, "b", names=None, topic_regex=".*", visible=all_of_them).assignment is not None
    assert {topic for topic, _ in g.target["a"]} == {T1}
    assert part(T2, 0, 1) <= g.target["b"]
    hidden.clear()
    epoch = g.epoch
    beat(g, "a", 1, visible=visible)
    assert g.epoch == epoch + 1
    hidden.add("two")
    beat(g, "a", 1, visible=visible)
    assert {topic for topic, _ in g.target["a"]} == {T1}


def test_a_replayed_member_gets_no_topic_that_it_may_not_see() -> None:
    """What it may see is not in the log: until its heartbeat it keeps to the topics that the group has."""
    g = group()
    for member in ("a", "b"):
        join(g, member, names=None, topic_regex="t.*", visible=lambda topics: topics)
    for member in g.members.values():
        member.visible = member.seen = None  # as read from the log
    g.after_replay(now_ms=0)
    epoch = g.epoch
    assert g.members["a"].epoch == 1
    beat(g, "a", 1, visible=lambda topics: topics)
    assert g.epoch == epoch, "nothing has changed"
    more = Topics(2, {**TOPICS.by_name, "three": TopicSize(UUID(int=103), 4)})
    beat(g, "a", g.members["a"].epoch, topics=more, visible=lambda topics: topics)
    assert UUID(int=103) not in {topic for topic, _ in g.target["b"]}
    beat(g, "b", g.members["b"].epoch, topics=more, visible=lambda topics: topics)
    assert UUID(int=103) in {topic for topic, _ in g.target["b"]}


def test_names_and_a_regex_of_one_member_are_added() -> None:
    g = group()
    assert join(g, "a", names=("one",), topic_regex="t.*").assignment == part(T1, 0, 1, 2, 3) | part(T2, 0, 1)
    # Each is changed by itself; what a heartbeat does not say stays.
    assert beat(g, "a", 1, topic_names=()).assignment == part(T2, 0, 1)
    assert g.target["a"] == part(T2, 0, 1)
    beat(g, "a", 1, part(T2, 0, 1), topic_names=("one",), topic_regex="")
    assert g.target["a"] == part(T1, 0, 1, 2, 3)


def test_joining_without_topics_is_allowed_without_saying_so_is_not() -> None:
    g = group()
    assert join(g, "a", names=None, topic_regex="").assignment == frozenset()
    assert join(g, "b", names=()).assignment == frozenset()
    refused(ErrorCode.invalid_request, join, g, "c", names=None)
    refused(ErrorCode.invalid_request, join, g, "c", owned=None)


partition_counts = st.dictionaries(
    st.integers(1, 5).map(lambda n: UUID(int=n)), st.integers(1, 9), min_size=1
)
member_names = st.sampled_from(["a", "b", "c", "d", "e", "f"])
wanted_topics = st.frozensets(st.integers(1, 6).map(lambda n: UUID(int=n)))


@pytest.mark.parametrize("name", ASSIGNORS)
@given(
    subscriptions=st.dictionaries(member_names, wanted_topics, min_size=1),
    topics=partition_counts,
    changed=st.dictionaries(member_names, wanted_topics, min_size=1),
)
def test_every_wanted_partition_has_one_owner_who_wants_it(
    name: str,
    subscriptions: dict[str, frozenset[UUID]],
    topics: dict[UUID, int],
    changed: dict[str, frozenset[UUID]],
) -> None:
    current = ASSIGNORS[name](subscriptions, topics, {})
    for wants, target in (
        (subscriptions, current),
        (changed, ASSIGNORS[name](changed, topics, current)),
    ):
        assert set(target) == set(wants)
        owned = [partition for partitions in target.values() for partition in partitions]
        wanted = {
            (topic, index)
            for topic, count in topics.items()
            if any(topic in mine for mine in wants.values())
            for index in range(count)
        }
        assert sorted(owned) == sorted(wanted)
        assert all(topic in wants[member] for member, mine in target.items() for topic, _ in mine)


@given(
    members=st.sets(member_names, min_size=1),
    others=st.sets(member_names, min_size=1),
    topics=partition_counts,
)
def test_uniform_is_balanced_and_moves_as_little_as_it_can(
    members: set[str], others: set[str], topics: dict[UUID, int]
) -> None:
    everything = frozenset(topics)
    first = assign_uniform(dict.fromkeys(members, everything), topics, {})
    second = assign_uniform(dict.fromkeys(others, everything), topics, first)
    sizes = [len(mine) for mine in second.values()]
    assert max(sizes) - min(sizes) <= 1
    for member in members & others:
        kept = len(first[member] & second[member])
        assert kept >= min(len(first[member]), sum(sizes) // len(sizes))
    if members == others:
        assert first == second


def test_range_keeps_topics_side_by_side() -> None:
    wants = dict.fromkeys(["a", "b"], frozenset({T1, T2}))
    target = assign_range(wants, {T1: 4, T2: 4}, {})
    assert target["a"] == part(T1, 0, 1) | part(T2, 0, 1)


@dataclass
class Client:
    member_id: str
    instance_id: str | None
    names: tuple[str, ...]
    epoch: int = 0
    owned: Partitions = frozenset()
    told: Partitions = frozenset()
    """What it should own; a slow client takes a while to get there."""


class Crowd:
    """Clients heartbeat in any order, are slow to revoke, crash; the coordinator fails over."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.group = group()
        self.log: dict[bytes, bytes | None] = {}
        self.clients: list[Client] = []
        self.now_ms = 0
        self.topics = TOPICS
        self.ids = iter(range(10_000))

    def arrive(self) -> None:
        used = {client.instance_id for client in self.clients}
        static = self.random.choice([None, "i1", "i2"])
        names = self.random.choice([("one",), ("one", "two"), ("two",)])
        self.clients.append(Client(f"m{next(self.ids)}", None if static in used else static, names))

    def step(self, client: Client, *, slow: bool = False) -> None:
        joining = client.epoch == 0
        if not slow:
            client.owned = client.told
        request = ConsumerHeartbeat(
            member_id=client.member_id,
            member_epoch=client.epoch,
            instance_id=client.instance_id,
            rebalance_timeout_ms=20_000 if joining else -1,
            topic_names=client.names if joining else None,
            owned=frozenset() if joining else client.owned,
        )
        try:
            result = self.group.heartbeat(request, self.topics, now_ms=self.now_ms)
        except RequestError as error:
            assert error.code in (
                ErrorCode.fenced_member_epoch,
                ErrorCode.unknown_member_id,
                ErrorCode.fenced_instance_id,
                ErrorCode.unreleased_instance_id,
            )
            client.owned = client.told = frozenset()
            client.epoch = 0
            return
        self.write()
        client.epoch = result.member_epoch
        if result.assignment is not None:
            client.told = result.assignment
        self.nobody_shares()

    def nobody_shares(self) -> None:
        """Of the members that the group still counts, no two own the same partition."""
        counted = [c for c in self.clients if c.member_id in self.group.members and c.epoch > 0]
        owned = [partition for client in counted for partition in client.owned]
        assert len(owned) == len(set(owned))

    def write(self) -> None:
        for dirty in self.group.dirty:
            key = PartKey("g", dirty.part, dirty.member_id)
            self.log[encode_key(key)] = encode_part(self.group, key)
        self.group.dirty.clear()

    def fail_over(self) -> None:
        self.write()
        restored = group()
        for data, value in self.log.items():
            key = decode_key(data)
            assert isinstance(key, PartKey)
            apply_part(restored, key, value)
        restored.after_replay(now_ms=self.now_ms)
        restored.dirty.clear()
        for member_id, member in self.group.members.items():
            other = restored.members[member_id]
            assert (other.epoch, other.state, other.assigned, other.revoking, other.topic_names) == (
                member.epoch,
                member.state,
                member.assigned,
                member.revoking,
                member.topic_names,
            )
        assert (restored.epoch, restored.assignment_epoch) == (self.group.epoch, self.group.assignment_epoch)
        assert restored.target == self.group.target
        self.group = restored

    def wait(self, ms: int) -> None:
        self.now_ms += ms
        self.group.advance(now_ms=self.now_ms)
        self.write()
        for client in self.clients:
            if client.member_id not in self.group.members:
                client.owned = client.told = frozenset()  # the client's own session timer did the same


@pytest.mark.parametrize("seed", range(25))
def test_crowds_share_nothing_and_agree_in_the_end(seed: int) -> None:
    random = Random(seed)
    crowd = Crowd(random)
    for _ in range(300):
        draw = random.random()
        if draw < 0.06 and len(crowd.clients) < 6:
            crowd.arrive()
        elif draw < 0.09 and crowd.clients:
            gone = crowd.clients.pop(random.randrange(len(crowd.clients)))
            if random.random() < 0.5 and gone.member_id in crowd.group.members and gone.epoch > 0:
                leave = ConsumerHeartbeat(
                    member_id=gone.member_id, member_epoch=-1, instance_id=gone.instance_id
                )
                crowd.group.heartbeat(leave, crowd.topics, now_ms=crowd.now_ms)
        elif draw < 0.11:
            crowd.fail_over()
        elif draw < 0.13:
            crowd.topics = Topics(
                crowd.topics.version + 1, {**TOPICS.by_name, "one": TopicSize(T1, random.randrange(1, 8))}
            )
        elif draw < 0.25:
            crowd.wait(random.choice([100, 3_000, 9_000]))
        elif crowd.clients:
            crowd.step(random.choice(crowd.clients), slow=random.random() < 0.3)
    for _ in range(30):
        for client in crowd.clients:
            crowd.step(client)
        crowd.wait(3_000)
    assert set(crowd.group.members) == {client.member_id for client in crowd.clients}
    wanted = {
        (info.topic_id, index)
        for name, info in crowd.topics.by_name.items()
        if any(name in client.names for client in crowd.clients)
        for index in range(info.partition_count)
    }
    assert sorted(partition for client in crowd.clients for partition in client.owned) == sorted(wanted)
    assert all(member.state is MemberState.STABLE for member in crowd.group.members.values())
