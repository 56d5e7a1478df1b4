"""Submitting, the bus, and a log that answers late, never, or out of another node's hands (S11, S18)."""

from __future__ import annotations

import asyncio
import gc
import re
import zipfile
from pathlib import Path
from uuid import UUID

import pytest

from chronik.metadata import commands as c
from chronik.metadata import events as e
from chronik.metadata.bus import EventBus
from chronik.metadata.levels import COMMAND_LEVELS, LEVEL_LAST
from chronik.metadata.store import CommittedCommand, MetadataListener, MetadataStore
from chronik.model import ErrorCode, RequestError, TopicPartition, Unavailable
from tools.previous_release import kept


class InstantLog:
    """Commits what is appended when told to."""

    def __init__(self) -> None:
        self.entries: list[CommittedCommand] = []
        self.listeners: list[MetadataListener] = []
        self.held = False
        self.unavailable = False

    def subscribe(self, listener: MetadataListener) -> None:
        self.listeners.append(listener)

    async def append(self, data: bytes) -> int:
        if self.unavailable:
            raise Unavailable("no leader")
        self.entries.append(CommittedCommand(len(self.entries) + 1, data))
        if not self.held:
            self.release(self.entries[-1])
        return len(self.entries)

    def release(self, *entries: CommittedCommand) -> None:
        for listener in self.listeners:
            listener.on_committed(entries)


def make(origin: int = 1, log: InstantLog | None = None) -> tuple[MetadataStore, InstantLog]:
    log = log or InstantLog()
    store = MetadataStore(log, origin=origin)
    return store, log


REGISTER = c.RegisterBroker(broker_id=1, incarnation=UUID(int=1), endpoints={})
CREATE = c.CreateTopic(name="t", topic_id=UUID(int=2), assignments=((1,),))


async def test_a_submitted_command_is_applied_and_told_about() -> None:
    store, _ = make()
    with store.bus.subscribe(e.TopicCreated) as subscription:
        await store.submit(REGISTER)
        outcome = await store.submit(CREATE)
        assert outcome.index == 2
        assert await subscription.next_batch() == [e.TopicCreated(topic="t", topic_id=UUID(int=2))]
    assert "t" in store.state.topics
    with pytest.raises(RequestError) as refused:
        await store.submit(CREATE)
    assert refused.value.code == ErrorCode.topic_already_exists


async def test_every_node_applies_but_only_the_submitter_is_answered() -> None:
    log = InstantLog()
    one, _ = make(1, log)
    two, _ = make(2, log)
    log.held = True
    first = asyncio.create_task(one.submit(REGISTER))
    second = asyncio.create_task(two.submit(CREATE))
    reached = asyncio.create_task(one.applied(2))
    await asyncio.sleep(0)
    log.release(log.entries[0])
    assert (await first).index == 1
    assert not second.done()
    assert not reached.done()
    log.release(log.entries[1])
    assert (await second).index == 2
    await reached
    assert one.state.topics == two.state.topics


async def test_a_deadline_gives_the_kafka_error_and_forgets_the_waiter() -> None:
    store, log = make()
    log.held = True
    with pytest.raises(RequestError) as late:
        await store.submit(REGISTER, timeout_s=0.01)
    assert late.value.code == ErrorCode.request_timed_out
    assert store._waiting == {}
    log.release(*log.entries)
    assert 1 in store.state.brokers


async def test_no_leader_is_unavailable_and_closing_releases_those_who_wait() -> None:
    store, log = make()
    log.unavailable = True
    with pytest.raises(Unavailable):
        await store.submit(REGISTER)
    log.unavailable, log.held = False, True
    waiting = asyncio.create_task(store.submit(REGISTER))
    await asyncio.sleep(0)
    store.close()
    with pytest.raises(Unavailable):
        await waiting


async def test_closing_while_the_log_is_still_asked_leaves_no_error_behind() -> None:
    """An error that nobody looks at is shown with its stack by the event loop."""
    shown: list[dict[str, object]] = []

    class SlowLog(InstantLog):
        async def append(self, data: bytes) -> int:
            await asyncio.sleep(60)
            return 1

    asyncio.get_running_loop().set_exception_handler(lambda _, context: shown.append(context))
    store, _ = make(log=SlowLog())
    asking = asyncio.create_task(store.submit(REGISTER))
    await asyncio.sleep(0)
    store.close()
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    gc.collect()
    assert shown == []


async def test_a_snapshot_replaces_the_state_and_says_resync() -> None:
    source, _ = make()
    await source.submit(REGISTER)
    await source.submit(CREATE)
    target, _ = make(2)
    subscription = target.bus.subscribe(e.LeaderChanged)
    reached = asyncio.create_task(target.applied(2))
    await asyncio.sleep(0)
    target.on_snapshot(source.snapshot())
    assert target.snapshot() == source.snapshot()
    assert subscription.drain() == [e.Resync()]
    await reached


def test_a_lagging_subscriber_gets_one_resync_and_the_others_everything() -> None:
    bus = EventBus()
    slow, quick = bus.subscribe(capacity=3), bus.subscribe(capacity=100)
    events = [e.HighWatermarkUpdated(tp=TopicPartition("t", 0), high_watermark=n) for n in range(5)]
    bus.publish(events)
    assert slow.drain() == [e.Resync(), events[4]]
    assert quick.drain() == events
    slow.close()
    bus.publish(events)
    assert slow.drain() == []


async def test_a_cancelled_wait_loses_nothing() -> None:
    bus = EventBus()
    subscription = bus.subscribe()
    waiting = asyncio.create_task(subscription.next_batch())
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    bus.publish([e.Resync()])
    assert await subscription.next_batch() == [e.Resync()]


async def test_a_new_topic_is_one_line_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    many = c.CreateTopic(name="many", topic_id=UUID(int=3), assignments=((1,),) * 100)
    store, log = make()
    make(origin=2, log=log)  # another node, which was not asked
    with caplog.at_level("INFO", logger="chronik"):
        await store.submit(REGISTER)
        await store.submit(c.Batch(commands=(CREATE, many)))
        await store.submit(c.DeleteTopic(topic_id=UUID(int=3)))
    assert [record.getMessage() for record in caplog.records] == [
        "topic t created: 1 partitions, 1 replicas each",
        "topic many created: 100 partitions, 1 replicas each",
        "topic many deleted: 100 partitions",
    ]


def test_commands_that_the_release_before_does_not_know_wait_for_a_level() -> None:
    with zipfile.ZipFile(kept()) as wheel:
        source = wheel.read("chronik/metadata/commands.py").decode()
    known = set(re.findall(r'tag="(\w+)"', source))
    now = set(re.findall(r'tag="(\w+)"', Path(c.__file__).read_text()))
    assert now - known - {"set_level"} == set(COMMAND_LEVELS)


async def test_a_command_of_a_later_level_is_refused_until_the_upgrade_is_finalized() -> None:
    store, log = make()
    later = c.RemoveApiKey(name="k")
    for command in (later, c.Batch(commands=(later, REGISTER))):
        with pytest.raises(RequestError, match="chronik upgrade finalize"):
            await store.submit(command)
    assert log.entries == []
    await store.submit(c.SetLevel(level=LEVEL_LAST))
    with pytest.raises(RequestError) as refused:
        await store.submit(later)
    assert refused.value.code != ErrorCode.unsupported_version
