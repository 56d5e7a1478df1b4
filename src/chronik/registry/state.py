"""What the records of `_schemas` add up to. Changed by `apply` alone, in the order of the log."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from chronik.registry.limits import OVERHEAD_BYTES
from chronik.registry.records import Decoded, KeyType, Reference, SchemaValue

__all__ = ["DEFAULT_LEVEL", "DEFAULT_MODE", "LEVELS", "MODES", "RegistryState"]

LEVELS: Final = (
    *("BACKWARD", "BACKWARD_TRANSITIVE", "FORWARD", "FORWARD_TRANSITIVE"),
    *("FULL", "FULL_TRANSITIVE", "NONE"),
)
MODES: Final = ("READWRITE", "READONLY", "READONLY_OVERRIDE", "IMPORT")
DEFAULT_LEVEL: Final = "BACKWARD"
DEFAULT_MODE: Final = "READWRITE"


class RegistryState:
    def __init__(self) -> None:
        self._subjects: dict[str, dict[int, SchemaValue]] = {}
        self.by_id: dict[int, dict[tuple[str, int], SchemaValue]] = {}
        """The versions that share each id: all have the same schema."""
        self._ids: dict[tuple[str, str, tuple[Reference, ...]], int] = {}
        self._referring: dict[tuple[str, int], set[tuple[str, int]]] = {}
        """Versions that refer to a version."""
        self.configs: dict[str | None, str] = {}
        """Compatibility by subject; of None, for all that have none of their own."""
        self.modes: dict[str | None, str] = {}
        self.last_id = 0
        """The highest id that was ever given."""
        self.held_bytes = 0
        self.version_count = 0

    # -- changing ---------------------------------------------------------------------------------

    def apply(self, record: Decoded) -> None:
        subject, value = record.subject, record.value
        match record.keytype:
            case KeyType.SCHEMA if subject is not None:
                self._remove(subject, record.version)
                if value is not None:
                    self._add(value)
            case KeyType.DELETE_SUBJECT if subject is not None and value is not None:
                for one in list(self._subjects.get(subject, {}).values()):
                    if one.version <= value.version and not one.deleted:
                        self._subjects[subject][one.version] = gone = _deleted(one)
                        self.by_id[one.id][subject, one.version] = gone
            case KeyType.CONFIG:
                self._set(self.configs, subject, None if value is None else value.compatibility_level)
            case KeyType.MODE:
                self._set(self.modes, subject, None if value is None else value.mode)
            case KeyType.NOOP if value is not None:
                self.last_id = max(self.last_id, value.last_id)

    def _add(self, value: SchemaValue) -> None:
        self._subjects.setdefault(value.subject, {})[value.version] = value
        self.by_id.setdefault(value.id, {})[value.subject, value.version] = value
        self._ids.setdefault(value.body, value.id)
        self.last_id = max(self.last_id, value.id)
        for one in value.references:
            self._referring.setdefault((one.subject, one.version), set()).add((value.subject, value.version))
        self.held_bytes += size_of(value)
        self.version_count += 1

    def _remove(self, subject: str, version: int) -> None:
        versions = self._subjects.get(subject, {})
        found = versions.pop(version, None)
        if found is None:
            return
        if not versions:
            del self._subjects[subject]
        same = self.by_id[found.id]
        del same[subject, version]
        if not same:
            del self.by_id[found.id]
            if self._ids.get(found.body) == found.id:
                del self._ids[found.body]
        for one in found.references:
            referring = self._referring[one.subject, one.version]
            referring.discard((subject, version))
            if not referring:
                del self._referring[one.subject, one.version]
        self.held_bytes -= size_of(found)
        self.version_count -= 1

    def _set(self, values: dict[str | None, str], subject: str | None, value: str | None) -> None:
        if values.pop(subject, None) is not None:
            self.held_bytes -= size_of_name(subject)
        if value is not None:
            values[subject] = value
            self.held_bytes += size_of_name(subject)

    # -- asking -----------------------------------------------------------------------------------

    @property
    def subject_count(self) -> int:
        return len(self._subjects)

    def subjects(self) -> Iterator[tuple[str, Mapping[int, SchemaValue]]]:
        for name in sorted(self._subjects):
            yield name, self._subjects[name]

    def versions(self, subject: str, *, deleted: bool = False) -> list[SchemaValue]:
        """In their order; with those that were deleted, if wanted."""
        found = self._subjects.get(subject, {})
        return [one for _, one in sorted(found.items()) if deleted or not one.deleted]

    def version(self, subject: str, version: int) -> SchemaValue | None:
        return self._subjects.get(subject, {}).get(version)

    def id_of(self, body: tuple[str, str, tuple[Reference, ...]]) -> int | None:
        return self._ids.get(body)

    def referring(self, subject: str, version: int) -> list[SchemaValue]:
        """Versions that are not deleted and refer to this one."""
        found = (self.version(*one) for one in sorted(self._referring.get((subject, version), ())))
        return [one for one in found if one is not None and not one.deleted]

    def level(self, subject: str) -> str:
        return self.configs.get(subject) or self.configs.get(None) or DEFAULT_LEVEL

    def mode(self, subject: str | None) -> str:
        everywhere = self.modes.get(None) or DEFAULT_MODE
        if everywhere == "READONLY_OVERRIDE" or subject is None:
            return everywhere
        return self.modes.get(subject) or everywhere


def size_of(value: SchemaValue) -> int:
    """What a version takes in memory, about."""
    names = sum(len(one.name) + len(one.subject) + OVERHEAD_BYTES // 2 for one in value.references)
    return OVERHEAD_BYTES + 2 * len(value.subject) + 2 * len(value.schema) + names


def size_of_name(subject: str | None) -> int:
    """What the config or the mode of a subject takes in memory, about."""
    return OVERHEAD_BYTES // 2 + 2 * len(subject or "")


def _deleted(value: SchemaValue) -> SchemaValue:
    return SchemaValue(
        subject=value.subject,
        version=value.version,
        id=value.id,
        schema_type=value.schema_type,
        references=value.references,
        schema=value.schema,
        deleted=True,
    )
