"""Writes that fail: only what the log has counts afterwards (H06)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import msgspec
import pytest

from chronik.client_state import Share
from chronik.model import ErrorCode, RequestError
from chronik.records.batch import BatchHeader, Buffer, headers
from chronik.records.reader import Record
from chronik.records.writer import build_batch
from chronik.registry.errors import RegistryError
from chronik.registry.judging import Judging
from chronik.registry.messages import RegistryAnswer, RegistryCall, SchemaBody
from chronik.registry.operations import CHANGES, QUESTIONS
from chronik.registry.records import SchemaValue, schema_record
from chronik.registry.shard import SchemaShard


class Log:
    """Stands for a journal: a write may fail before or after it is in the log."""

    def __init__(self) -> None:
        self.batches: list[bytes] = []
        self.fails_before = False
        self.fails_behind = False
        self.hangs = False
        self.is_led = True
        self.loads = 0
        self.writes = asyncio.Event()
        """Set once a write hangs."""

    async def write(self, records: Sequence[tuple[bytes, bytes | None]]) -> int:
        if self.fails_before:
            raise RequestError(ErrorCode.not_coordinator)
        self.batches.append(bytes(build_batch([Record(key=key, value=value) for key, value in records])))
        if self.hangs:
            self.writes.set()
            await asyncio.Event().wait()
        if self.fails_behind:
            raise RequestError(ErrorCode.coordinator_not_available)
        return len(self.batches)

    async def load(self, apply: Callable[[BatchHeader, Buffer], None]) -> bool:
        self.loads += 1
        for batch in self.batches:
            for position, header in headers(batch):
                apply(header, memoryview(batch)[position : position + header.size_bytes])
        return self.is_led


def shard_of(log: Log) -> SchemaShard:
    return SchemaShard(log, Share("schemas", 1 << 20))  # type: ignore[arg-type]


async def register(shard: SchemaShard, subject: str, schema: str = '"int"') -> int:
    body = SchemaBody(schema=schema)
    made = await CHANGES["register"](
        shard, Judging(), RegistryCall(operation="register", subject=subject, body=body)
    )
    return int(made["id"])


async def subjects(shard: SchemaShard) -> list[str]:
    call = RegistryCall(operation="subjects")
    return [one["subject"] for one in await QUESTIONS["subjects"](await shard.state(), Judging(), call)]


@pytest.mark.parametrize("hostile", [-1.0, 1e300])
def test_another_node_does_not_put_a_client_into_debt_for_ever(hostile: float) -> None:
    """Nor out of it: what a call took is charged to the caller's quota."""
    assert msgspec.convert({"work_s": 20.5}, RegistryAnswer).work_s == 20.5
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"work_s": hostile}, RegistryAnswer)


async def test_a_write_that_is_in_the_log_counts_though_it_failed() -> None:
    log = Log()
    shard = shard_of(log)
    log.fails_behind = True
    with pytest.raises(RequestError):
        await register(shard, "a")
    log.fails_behind = False
    assert await subjects(shard) == ["a"]
    assert await register(shard, "b", '"long"') == 2


async def test_a_write_that_is_not_in_the_log_does_not_count() -> None:
    log = Log()
    shard = shard_of(log)
    log.fails_before = True
    with pytest.raises(RequestError):
        await register(shard, "a")
    log.fails_before = False
    assert await subjects(shard) == []
    assert await register(shard, "b", '"long"') == 1


async def test_a_client_that_leaves_while_its_schema_is_written() -> None:
    log = Log()
    shard = shard_of(log)
    log.hangs = True
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await register(shard, "a")
    log.hangs = False
    assert await register(shard, "b", '"long"') == 2
    assert await subjects(shard) == ["a", "b"]
    assert log.loads == 1


async def test_what_is_committed_is_answered_while_a_write_is_under_way() -> None:
    log = Log()
    shard = shard_of(log)
    await register(shard, "a")
    log.hangs = True
    writing = asyncio.create_task(register(shard, "b", '"long"'))
    await log.writes.wait()
    async with asyncio.timeout(5):
        assert await subjects(shard) == ["a"]
    writing.cancel()


async def test_who_lost_the_lead_answers_nothing_more() -> None:
    log = Log()
    shard = shard_of(log)
    log.fails_behind, log.is_led = True, False
    with pytest.raises(RequestError):
        await register(shard, "a")
    with pytest.raises(RequestError) as refused:
        await subjects(shard)
    assert refused.value.code is ErrorCode.not_coordinator


async def test_what_it_holds_is_counted_and_let_go() -> None:
    shard = shard_of(Log())
    await register(shard, "a")
    assert shard.share.held_bytes > 600
    shard.close()
    assert shard.share.held_bytes == 0


async def test_records_that_make_no_sense_are_skipped() -> None:
    """A topic that another registry wrote may have kinds that this one does not know."""
    log = Log()
    value = SchemaValue(subject="a", version=1, id=5, schema='"int"')
    await log.write(
        [
            (b'{"keytype":"CONTEXT","tenant":"t","magic":0}', b"{}"),
            (b"junk", b"{"),
            (b'{"keytype":"SCHEMA","subject":"c","version":1,"magic":1}', b'{"id":8,"schema":null}'),
            schema_record(value),
        ]
    )
    shard = shard_of(log)
    await log.load(shard.apply)
    shard.opened()
    assert await subjects(shard) == ["a"]
    assert await register(shard, "b", '"long"') == 9, "records may name the schema that has the id 8"


async def test_schemas_of_other_contexts_are_not_found_by_their_ids() -> None:
    """In the topic of Confluent's registry an id may be another schema's in another context."""
    log = Log()
    there = SchemaValue(subject=":.there:a", version=1, id=5, schema='"long"')
    here = SchemaValue(subject="a", version=1, id=5, schema='"int"')
    await log.write([schema_record(there), schema_record(here)])
    shard = shard_of(log)
    await log.load(shard.apply)
    found = await QUESTIONS["by_id"](await shard.state(), Judging(), RegistryCall(operation="by_id", id=5))
    assert (found["schema"], len(found["versions"])) == ('"int"', 1)


async def test_what_makes_no_sense_is_a_line_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    shard, log = shard_of(Log()), Log()
    await log.write([(b"junk", b"{")] * 1_000)
    await log.load(shard.apply)
    assert len(caplog.records) <= 1


async def test_configs_and_modes_are_counted() -> None:
    shard = shard_of(Log())
    shard.share.bytes_max = 5_500

    async def change(operation: str, subject: str | None, value: str = "") -> None:
        await CHANGES[operation](
            shard, Judging(), RegistryCall(operation=operation, subject=subject, value=value)
        )

    for subject in ("a", "b"):
        await change("set_config", subject * 512, "FULL")
        await change("set_mode", subject * 512, "READWRITE")
    with pytest.raises(RegistryError, match="too many configs"):
        await change("set_mode", "c" * 512, "READWRITE")
    await change("set_config", "a" * 512, "NONE")
    await change("set_config", None, "NONE")
    for subject in ("a", "b"):
        await change("delete_config", subject * 512)
        await change("delete_mode", subject * 512)
    await change("delete_config", None)
    assert shard.share.held_bytes == 0


async def test_deletions_in_the_log_are_those_of_confluents_registry() -> None:
    log = Log()
    values = [
        SchemaValue(subject="a", version=n, id=n, schema=f'"{kind}"') for n, kind in ((1, "int"), (2, "long"))
    ]
    await log.write([schema_record(one) for one in values])
    await log.write(
        [(b'{"keytype":"DELETE_SUBJECT","subject":"a","magic":0}', b'{"subject":"a","version":1}')]
    )
    shard = shard_of(log)
    await log.load(shard.apply)
    state = await shard.state()
    assert [one.deleted for one in state.versions("a", deleted=True)] == [True, False]


def test_statuses_are_in_the_codes() -> None:
    assert [RegistryError(code, "x").status for code in (40401, 409, 42201, 50001)] == [404, 409, 422, 500]


async def test_lists_are_cut_where_the_schemas_are_and_hold_up_nobody() -> None:
    """Only what a client wants is made into an answer and handed from node to node."""
    shard = shard_of(Log())
    shard.share.bytes_max = 1 << 30
    for n in range(450):
        await register(shard, f"{'ab'[n % 2]}{n:03}")
    await register(shard, "b001", '"long"')
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def ask(operation: str, *, latest_only: bool = False) -> list[str]:
        call = RegistryCall(operation=operation, prefix="b", latest_only=latest_only)
        found = await QUESTIONS[operation](await shard.state(), Judging(), call)
        return [one["subject"] for one in found]

    running = asyncio.create_task(others())
    assert len(await ask("subjects")) == 225
    assert turns >= 2
    running.cancel()
    everything = await ask("schemas")
    assert (len(everything), everything[:2]) == (226, ["b001", "b001"])
    assert len(await ask("schemas", latest_only=True)) == 225
