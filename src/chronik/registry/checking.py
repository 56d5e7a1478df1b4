"""What has to be judged about a schema: its text with all that it refers to, and the versions before it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from chronik.registry.errors import RegistryError
from chronik.registry.judge import TYPES, SchemaQuestion, SchemaText
from chronik.registry.judging import Judge
from chronik.registry.limits import (
    COMPARED_BYTES_MAX,
    COMPARED_MAX,
    REFERENCED_MAX,
    REFERENCES_MAX,
    SCHEMA_BYTES_MAX,
)
from chronik.registry.messages import RegistryCall
from chronik.registry.records import Reference, SchemaValue
from chronik.registry.state import RegistryState

__all__ = ["CheckPlan", "canonical_of", "plan_of"]


class CheckPlan(NamedTuple):
    """Equal plans have equal verdicts."""

    question: SchemaQuestion
    references: tuple[Reference, ...]

    def body(self, text: str) -> tuple[str, str, tuple[Reference, ...]]:
        return self.question.schema.schema_type, text, self.references


async def canonical_of(judging: Judge, question: SchemaQuestion) -> str:
    verdict = await judging.judge(question)
    if verdict.invalid:
        raise RegistryError(42201, f"Invalid schema: {verdict.invalid}")
    return verdict.canonical


def plan_of(
    state: RegistryState,
    given: RegistryCall | SchemaValue,
    earlier: Sequence[SchemaValue] = (),
    level: str = "NONE",
) -> CheckPlan:
    """RegistryError for a schema that is not worth judging: too large, of no known type, with missing
    references."""
    normalize = False
    if isinstance(given, RegistryCall):
        body, normalize = given.body, given.normalize
        schema_type, text = body.schema_type or "AVRO", body.schema
        references = tuple(body.references or ())
        if body.metadata or body.rule_set:
            raise RegistryError(42201, "Invalid schema: metadata and ruleSet are not supported.")
    else:
        schema_type, text, references = given.body
    if schema_type not in TYPES:
        raise RegistryError(
            42201, f"Invalid schema: there is no type {schema_type[:40]!r}; known are {', '.join(TYPES)}."
        )
    if not text.strip():
        raise RegistryError(42201, "Invalid schema: it is empty.")
    if len(text.encode(errors="surrogatepass")) > SCHEMA_BYTES_MAX:
        raise RegistryError(42201, f"Invalid schema: it has more than {SCHEMA_BYTES_MAX} bytes.")
    gatherer = _Gatherer(state)
    schema = gatherer.text_of(schema_type, text, references)
    texts = [(one.version, gatherer.text_of(*one.body)) for one in earlier]
    question = SchemaQuestion(schema=schema, normalize=normalize, earlier=texts, level=level)
    return CheckPlan(question, references)


class _Gatherer:
    """Finds what schemas refer to, within what one question may hold."""

    def __init__(self, state: RegistryState) -> None:
        self._state = state
        self._bytes = 0
        self._count = 0

    def text_of(self, schema_type: str, text: str, references: tuple[Reference, ...]) -> SchemaText:
        found: dict[str, str] = {}
        self._take(text)
        self._gather(schema_type, references, found, {}, 0)
        return SchemaText(schema_type=schema_type, text=text, references=found)

    def _take(self, text: str) -> None:
        self._bytes += len(text)
        self._count += 1
        if self._bytes > COMPARED_BYTES_MAX or self._count > COMPARED_MAX:
            raise RegistryError(42201, "Invalid schema: there is too much to compare it with.")

    def _gather(
        self,
        schema_type: str,
        references: tuple[Reference, ...],
        found: dict[str, str],
        whose: dict[str, tuple[str, int]],
        depth: int,
    ) -> None:
        """Each one behind what it refers to itself."""
        if len(references) > REFERENCES_MAX or depth > REFERENCES_MAX or len(whose) > REFERENCED_MAX:
            raise RegistryError(42201, f"Invalid schema: it has more than {REFERENCES_MAX} references.")
        for one in references:
            target = (one.subject, one.version)
            # The name of an Avro reference means nothing: types are found by their own names.
            name = f"{one.subject}:{one.version}" if schema_type == "AVRO" else one.name
            if name in whose:
                if whose[name] != target:
                    raise RegistryError(42201, f"Invalid schema: two references are called {name[:100]!r}.")
                continue
            value = self._state.version(*target)
            if value is None or value.deleted:
                raise RegistryError(
                    42201,
                    f'Invalid schema: no schema reference found for subject "{one.subject[:200]}" and '
                    f"version {one.version}",
                )
            if value.schema_type != schema_type:
                raise RegistryError(
                    42201, f"Invalid schema: the reference {one.name[:100]!r} has another type."
                )
            whose[name] = target
            self._gather(schema_type, value.references, found, whose, depth + 1)
            self._take(value.schema)
            found[name] = value.schema
