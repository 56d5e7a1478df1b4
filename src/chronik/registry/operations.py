"""What clients ask of the registry, against a state; errors are Confluent's.

Questions look at a state and change nothing. Changes take the shard: they look, have schemas judged without
holding anybody up, then take their turn to write, and begin again if the state has changed what was judged.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, Final, TypeAlias

import msgspec

from chronik.registry.checking import CheckPlan, canonical_of, plan_of
from chronik.registry.errors import RegistryError
from chronik.registry.judge import SchemaQuestion, directions_of
from chronik.registry.judging import Judge
from chronik.registry.limits import RECORD_BYTES_MAX, SUBJECTS_MAX, VERSIONS_MAX
from chronik.registry.messages import RegistryCall
from chronik.registry.records import KeyType, NoopValue, Record, SchemaValue, key_of, schema_record
from chronik.registry.shard import SchemaShard
from chronik.registry.state import DEFAULT_LEVEL, LEVELS, MODES, RegistryState, size_of, size_of_name

__all__ = ["CHANGES", "QUESTIONS"]

_Question: TypeAlias = Callable[[RegistryState, Judge, RegistryCall], Awaitable[Any]]
_Change: TypeAlias = Callable[[SchemaShard, Judge, RegistryCall], Awaitable[Any]]

ATTEMPTS_MAX: Final = 10
SUBJECTS_AT_ONCE: Final = 200
ID_MAX: Final = (1 << 31) - 1
ID_DIGITS_MAX: Final = 10
LATEST: Final = "latest"


def _no_subject(subject: str | None) -> RegistryError:
    return RegistryError(40401, f"Subject '{subject}' not found.")


def _no_schema(schema_id: int) -> RegistryError:
    return RegistryError(40403, f"Schema {schema_id} not found.")


def _version_number(text: str) -> int | None:
    """None for the latest one."""
    if text in (LATEST, "-1"):
        return None
    if not (text.isdecimal() and len(text) <= ID_DIGITS_MAX and 1 <= int(text) <= ID_MAX):
        raise RegistryError(
            42202,
            f"The specified version '{text[:40]}' is not a valid version id. Allowed values are between "
            f'[1, 2^31-1] and the string "latest"',
        )
    return int(text)


def _version(state: RegistryState, call: RegistryCall) -> SchemaValue:
    number = _version_number(call.version)
    versions = state.versions(_subject(call), deleted=call.deleted)
    if not versions:
        raise _no_subject(call.subject)
    found = versions[-1] if number is None else next((one for one in versions if one.version == number), None)
    if found is None:
        raise RegistryError(40402, f"Version {number} not found.")
    return found


def _subject(call: RegistryCall) -> str:
    return call.subject or ""


def _of_schema(value: SchemaValue, schema: str) -> dict[str, Any]:
    shown: dict[str, Any] = {} if value.schema_type == "AVRO" else {"schemaType": value.schema_type}
    if value.references:
        shown["references"] = msgspec.to_builtins(value.references)
    return {**shown, "schema": schema}


def _of_version(value: SchemaValue, schema: str | None = None) -> dict[str, Any]:
    text = value.schema if schema is None else schema
    deleted = {"deleted": True} if value.deleted else {}
    named = {"subject": value.subject, "version": value.version, "id": value.id}
    return {**named, **_of_schema(value, text), **deleted}


async def _formatted(state: RegistryState, judging: Judge, value: SchemaValue, wanted: str) -> str:
    if not wanted or (wanted == "serialized" and value.schema_type != "PROTOBUF"):
        return value.schema
    if wanted != "serialized":
        raise RegistryError(42200, f"The format {wanted[:40]!r} is not supported.")
    plan = plan_of(state, value)
    question = SchemaQuestion(schema=plan.question.schema, wants_serialized=True)
    return await canonical_of(judging, question)


# -- questions ------------------------------------------------------------------------------------


async def _subjects(state: RegistryState, judging: Judge, call: RegistryCall) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    async for name, versions in _wanted(state, call):
        is_deleted = all(one.deleted for one in versions.values())
        if call.deleted or not is_deleted:
            found.append({"subject": name, "deleted": is_deleted})
    return found


async def _wanted(
    state: RegistryState, call: RegistryCall
) -> AsyncIterator[tuple[str, Mapping[int, SchemaValue]]]:
    """Subjects with their versions; a large registry does not hold up everybody else."""
    for place, (name, versions) in enumerate(list(state.subjects())):
        if name.startswith(call.prefix):
            yield name, versions
        if place % SUBJECTS_AT_ONCE == 0:
            await asyncio.sleep(0)


async def _versions(state: RegistryState, judging: Judge, call: RegistryCall) -> list[dict[str, Any]]:
    found = state.versions(_subject(call), deleted=call.deleted)
    if not found:
        raise _no_subject(call.subject)
    return [{"version": one.version, "deleted": one.deleted} for one in found]


async def _get_version(state: RegistryState, judging: Judge, call: RegistryCall) -> dict[str, Any]:
    found = _version(state, call)
    return _of_version(found, await _formatted(state, judging, found, call.format))


async def _referenced_by(state: RegistryState, judging: Judge, call: RegistryCall) -> list[dict[str, Any]]:
    found = _version(state, call)
    referring = state.referring(found.subject, found.version)
    return [{"id": one.id, "subject": one.subject} for one in referring]


async def _by_id(state: RegistryState, judging: Judge, call: RegistryCall) -> dict[str, Any]:
    """The schema with an id, and all versions that have it: who may see one of them may see the schema."""
    found = state.by_id.get(call.id)
    if not found:
        raise _no_schema(call.id)
    first = next(iter(found.values()))
    schema = await _formatted(state, judging, first, call.format)
    versions = [
        {"subject": one.subject, "version": one.version, "deleted": one.deleted}
        for _, one in sorted(found.items())
    ]
    return {**_of_schema(first, schema), "versions": versions, "maxId": state.last_id}


async def _schemas(state: RegistryState, judging: Judge, call: RegistryCall) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    async for _, versions in _wanted(state, call):
        wanted = [one for _, one in sorted(versions.items()) if call.deleted or not one.deleted]
        found += map(_of_version, wanted[-1:] if call.latest_only else wanted)
    return found


async def _lookup(state: RegistryState, judging: Judge, call: RegistryCall) -> dict[str, Any]:
    versions = state.versions(_subject(call), deleted=call.deleted)
    if not versions:
        raise _no_subject(call.subject)
    plan = plan_of(state, call)
    found = _same(versions, plan, call.body.schema)
    if found is None:
        found = _same(versions, plan, await canonical_of(judging, plan.question))
    if found is None:
        raise RegistryError(40403, "Schema not found")
    return _of_version(found)


def _same(versions: list[SchemaValue], plan: CheckPlan, text: str) -> SchemaValue | None:
    """The newest version with this schema."""
    body = plan.body(text)
    return next((one for one in reversed(versions) if one.body == body), None)


async def _check(state: RegistryState, judging: Judge, call: RegistryCall) -> dict[str, Any]:
    level = state.level(_subject(call))
    earlier = state.versions(_subject(call))
    if call.version:
        number = _version_number(call.version)
        if number is not None:
            earlier = [one for one in earlier if one.version == number]
            if not earlier:
                raise RegistryError(40402, f"Version {number} not found.")
        earlier = earlier[-1:]
    elif not directions_of(level).is_transitive:
        earlier = earlier[-1:]
    plan = plan_of(state, call, earlier, level)
    verdict = await judging.judge(plan.question)
    if verdict.invalid:
        raise RegistryError(42201, f"Invalid schema: {verdict.invalid}")
    same = any(one.body == plan.body(verdict.canonical) for one in earlier)
    differences = [] if same and len(earlier) == 1 else verdict.differences
    return {"is_compatible": not differences, "messages": differences}


async def _config(state: RegistryState, judging: Judge, call: RegistryCall) -> dict[str, Any]:
    found = state.configs.get(call.subject)
    if found is None and call.subject is not None:
        if not call.default_to_global:
            raise RegistryError(
                40408, f"Subject '{call.subject}' does not have subject-level compatibility configured"
            )
        found = state.level(call.subject)
    return {"compatibilityLevel": found or DEFAULT_LEVEL}


async def _mode(state: RegistryState, judging: Judge, call: RegistryCall) -> dict[str, Any]:
    if call.subject is not None and call.subject not in state.modes and not call.default_to_global:
        raise RegistryError(40409, f"Subject '{call.subject}' does not have subject-level mode configured")
    return {"mode": state.mode(call.subject)}


# -- changes --------------------------------------------------------------------------------------


async def _register(shard: SchemaShard, judging: Judge, call: RegistryCall) -> dict[str, Any]:
    for _ in range(ATTEMPTS_MAX):
        state = await shard.state()
        is_import = _check_may_register(state, call)
        versions = state.versions(_subject(call))
        plan = _plan_to_register(state, call, versions, is_import=is_import)
        if not is_import and (known := _same(versions, plan, call.body.schema)) is not None:
            return {"id": known.id}
        verdict = await judging.judge(plan.question)
        if verdict.invalid:
            raise RegistryError(42201, f"Invalid schema: {verdict.invalid}")
        known = _same(versions, plan, verdict.canonical)
        if known is not None and (not is_import or known.version == call.body.version):
            return {"id": known.id}
        if verdict.differences:
            raise RegistryError(
                409,
                "Schema being registered is incompatible with an earlier schema for subject "
                f'"{call.subject}", details: [{"; ".join(verdict.differences)}]',
            )
        async with shard.writing() as state:
            again = _plan_to_register(state, call, state.versions(_subject(call)), is_import=is_import)
            if again != plan or _check_may_register(state, call) != is_import:
                continue  # another version, a config or a deletion came in between
            value = _new_version(state, call, plan.body(verdict.canonical))
            _check_room(shard, state, value)
            await shard.write([schema_record(value)])
            return {"id": value.id}
    raise RegistryError(50001, "The subject changes too often; try again.")


def _check_may_register(state: RegistryState, call: RegistryCall) -> bool:
    """Whether the subject is in mode IMPORT."""
    mode = state.mode(call.subject)
    wanted = call.body.id
    if mode.startswith("READONLY"):
        raise RegistryError(42205, f"Subject {call.subject} is in read-only mode")
    if mode != "IMPORT" and wanted is not None and wanted >= 0:
        raise RegistryError(42205, f"Subject {call.subject} is not in import mode")
    if mode == "IMPORT" and (wanted is None or not 1 <= wanted <= ID_MAX):
        raise RegistryError(42205, f"Subject {call.subject} is in import mode: a schema needs its id")
    return mode == "IMPORT"


def _plan_to_register(
    state: RegistryState, call: RegistryCall, versions: list[SchemaValue], *, is_import: bool
) -> CheckPlan:
    level = "NONE" if is_import else state.level(_subject(call))
    earlier = versions if directions_of(level).is_transitive else versions[-1:]
    return plan_of(state, call, [] if level == "NONE" else earlier, level)


def _new_version(state: RegistryState, call: RegistryCall, body: tuple[Any, ...]) -> SchemaValue:
    schema_type, schema, references = body
    everything = state.versions(_subject(call), deleted=True)
    number = everything[-1].version + 1 if everything else 1
    wanted, schema_id = call.body.version, call.body.id
    if schema_id is not None and schema_id > 0:
        found = state.by_id.get(schema_id)
        if found and next(iter(found.values())).body != body:
            raise RegistryError(42205, f"Overwrite new schema with id {schema_id} is not permitted.")
        if wanted is not None and wanted > 0:
            number = wanted
            if state.version(_subject(call), number) is not None:
                raise RegistryError(42205, f"Overwrite new schema with version {number} is not permitted.")
    else:
        if wanted is not None and wanted > 0 and wanted != number:
            raise RegistryError(42201, f"Version is not one more than previous version {number - 1}")
        schema_id = state.id_of(body) or state.last_id + 1
    if max(number, schema_id) > ID_MAX:
        raise RegistryError(42201, "There are no more ids or versions.")
    return SchemaValue(
        subject=_subject(call),
        version=number,
        id=schema_id,
        schema_type=schema_type,
        references=references,
        schema=schema,
    )


def _check_room(shard: SchemaShard, state: RegistryState, value: SchemaValue) -> None:
    known = len(state.versions(value.subject, deleted=True))
    if known >= VERSIONS_MAX:
        raise RegistryError(42290, f"A subject has at most {VERSIONS_MAX} versions.")
    if len(schema_record(value)[1] or b"") > RECORD_BYTES_MAX:
        raise RegistryError(42201, "Invalid schema: it is too large.")
    if not shard.share.has_room(size_of(value)) or (not known and state.subject_count >= SUBJECTS_MAX):
        shard.share.note_refusal()
        raise RegistryError(42290, "The registry is full: see the setting schema_registry_bytes_max.")


async def _delete_subject(shard: SchemaShard, judging: Judge, call: RegistryCall) -> list[int]:
    async with shard.writing() as state:
        _check_may_delete(state, call)
        everything = state.versions(_subject(call), deleted=True)
        live = [one for one in everything if not one.deleted]
        if not everything:
            raise _no_subject(call.subject)
        if call.permanent and live:
            raise RegistryError(
                40405, f"Subject '{call.subject}' was not deleted first before being permanently deleted"
            )
        if not call.permanent and not live:
            raise RegistryError(
                40404,
                f"Subject '{call.subject}' was soft deleted. Set permanent=true to delete permanently",
            )
        gone = everything if call.permanent else live
        for one in gone:
            _check_no_reference(state, one)
        records: list[Record] = [
            (key_of(keytype, call.subject), None)
            for keytype, values in ((KeyType.CONFIG, state.configs), (KeyType.MODE, state.modes))
            if call.subject in values
        ]
        marker = key_of(KeyType.DELETE_SUBJECT, call.subject)
        if call.permanent:
            records = [_last_id(state), *records, *map(_tombstone, gone), (marker, None)]
        else:
            last = {"subject": call.subject, "version": live[-1].version}
            records.append((marker, msgspec.json.encode(last)))
        await shard.write(records)
        return [one.version for one in gone]


async def _delete_version(shard: SchemaShard, judging: Judge, call: RegistryCall) -> int:
    async with shard.writing() as state:
        _check_may_delete(state, call)
        number = _version_number(call.version)
        everything = state.versions(_subject(call), deleted=True)
        if not everything:
            raise _no_subject(call.subject)
        candidates = [one for one in everything if one.deleted == call.permanent]
        if number is None:
            found = candidates[-1] if candidates else everything[-1]
        else:
            found = next((one for one in everything if one.version == number), everything[0])
            if found.version != number:
                raise RegistryError(40402, f"Version {number} not found.")
        if call.permanent and not found.deleted:
            raise RegistryError(
                40407,
                f"Subject '{call.subject}' Version {found.version} was not deleted first before being "
                "permanently deleted",
            )
        if not call.permanent and found.deleted:
            raise RegistryError(
                40406,
                f"Subject '{call.subject}' Version {found.version} was soft deleted. Set permanent=true to "
                "delete permanently",
            )
        _check_no_reference(state, found)
        if call.permanent:
            await shard.write([_last_id(state), _tombstone(found)])
        else:
            await shard.write([schema_record(msgspec.structs.replace(found, deleted=True))])
        return found.version


def _check_may_delete(state: RegistryState, call: RegistryCall) -> None:
    if state.mode(call.subject).startswith("READONLY"):
        raise RegistryError(42205, f"Subject {call.subject} is in read-only mode")


def _check_no_reference(state: RegistryState, value: SchemaValue) -> None:
    if state.referring(value.subject, value.version):
        raise RegistryError(
            42206,
            "One or more references exist to the schema {magic=1,keytype=SCHEMA,"
            f"subject={value.subject},version={value.version}}}.",
        )


def _last_id(state: RegistryState) -> Record:
    """Written with what goes for good: compaction may remove the last record that has the highest id."""
    return key_of(KeyType.NOOP), msgspec.json.encode(NoopValue(state.last_id))


def _tombstone(value: SchemaValue) -> Record:
    return key_of(KeyType.SCHEMA, value.subject, value.version), None


async def _set_config(shard: SchemaShard, judging: Judge, call: RegistryCall) -> dict[str, Any]:
    level = call.value.upper()
    if level not in LEVELS:
        raise RegistryError(42203, f"Invalid compatibility level. Valid values are {', '.join(LEVELS)}")
    async with shard.writing() as state:
        _check_may_delete(state, call)
        _check_names(shard, state, state.configs, call)
        value = msgspec.json.encode({"compatibilityLevel": level})
        await shard.write([(key_of(KeyType.CONFIG, call.subject), value)])
    return {"compatibility": level}


async def _delete_config(shard: SchemaShard, judging: Judge, call: RegistryCall) -> dict[str, Any]:
    async with shard.writing() as state:
        _check_may_delete(state, call)
        before = state.configs.get(call.subject)
        if before is None and call.subject is not None:
            raise _no_subject(call.subject)
        if before is not None:
            await shard.write([(key_of(KeyType.CONFIG, call.subject), None)])
    return {"compatibilityLevel": before or DEFAULT_LEVEL}


async def _set_mode(shard: SchemaShard, judging: Judge, call: RegistryCall) -> dict[str, Any]:
    mode = call.value.upper()
    if mode not in MODES:
        raise RegistryError(42204, f"Invalid mode. Valid values are {', '.join(MODES)}")
    async with shard.writing() as state:
        has_any = state.version_count if call.subject is None else state.versions(_subject(call))
        if mode == "IMPORT" and has_any and not call.force:
            what = "the registry" if call.subject is None else f"subject {call.subject}"
            raise RegistryError(
                42205, f"Cannot import since found existing subjects or versions in {what}; see force"
            )
        _check_names(shard, state, state.modes, call)
        value = msgspec.json.encode({"mode": mode})
        await shard.write([(key_of(KeyType.MODE, call.subject), value)])
    return {"mode": mode}


async def _delete_mode(shard: SchemaShard, judging: Judge, call: RegistryCall) -> dict[str, Any]:
    async with shard.writing() as state:
        before = state.modes.get(call.subject)
        if before is None:
            raise _no_subject(call.subject)
        await shard.write([(key_of(KeyType.MODE, call.subject), None)])
    return {"mode": before}


def _check_names(
    shard: SchemaShard, state: RegistryState, values: Mapping[str | None, str], call: RegistryCall
) -> None:
    """Configs and modes of subjects are bounded, whether the subjects are there or not; what is there already
    may be changed. Those of all subjects always have room."""
    if call.subject is None or call.subject in values:
        return
    is_crowded = len(state.configs) + len(state.modes) >= SUBJECTS_MAX
    if is_crowded or not shard.share.has_room(size_of_name(call.subject)):
        shard.share.note_refusal()
        raise RegistryError(42290, "There are too many configs and modes of subjects.")


QUESTIONS: Final[Mapping[str, _Question]] = {
    "subjects": _subjects,
    "versions": _versions,
    "version": _get_version,
    "referenced_by": _referenced_by,
    "by_id": _by_id,
    "schemas": _schemas,
    "lookup": _lookup,
    "check": _check,
    "config": _config,
    "mode": _mode,
}
CHANGES: Final[Mapping[str, _Change]] = {
    "register": _register,
    "delete_subject": _delete_subject,
    "delete_version": _delete_version,
    "set_config": _set_config,
    "delete_config": _delete_config,
    "set_mode": _set_mode,
    "delete_mode": _delete_mode,
}
