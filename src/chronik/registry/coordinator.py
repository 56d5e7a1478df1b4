"""Finds the registry: the shard of `_schemas`-0, on the node that leads it."""

from __future__ import annotations

from collections.abc import Callable

from chronik.client_state import Share
from chronik.coordinators.journal import Journal
from chronik.coordinators.shards import Replicas, Shards
from chronik.metadata.store import MetadataStore
from chronik.model import NO_LEADER, SCHEMAS_TOPIC, NodeId, RequestError
from chronik.registry.errors import RegistryError
from chronik.registry.judging import JudgeFor, Judging
from chronik.registry.messages import RegistryAnswer, RegistryCall
from chronik.registry.operations import CHANGES, QUESTIONS
from chronik.registry.shard import SchemaShard
from chronik.registry.state import RegistryState
from chronik.registry.topic import OwnReplicas, is_foreign

__all__ = ["SchemaRegistry"]


class SchemaRegistry:
    def __init__(
        self, *, metadata: MetadataStore, replicas: Replicas, now_ms: Callable[[], int], bytes_max: int
    ) -> None:
        self._metadata = metadata
        self.judging = Judging()
        self.share = Share("schemas", bytes_max)
        self._shards: Shards[SchemaShard] = Shards(
            SCHEMAS_TOPIC,
            metadata=metadata,
            replicas=OwnReplicas(replicas, metadata),
            build=lambda journal: self._build(journal),
            now_ms=now_ms,
        )

    def _build(self, journal: Journal) -> SchemaShard:
        return SchemaShard(journal, self.share)

    def start(self) -> None:
        self._shards.start()

    async def stop(self) -> None:
        await self._shards.stop()

    @property
    def has_topic(self) -> bool:
        return SCHEMAS_TOPIC in self._metadata.state.topics

    @property
    def is_blocked(self) -> bool:
        """Whether the name of its topic is taken by a topic that is something else."""
        topic = self._metadata.state.topics.get(SCHEMAS_TOPIC)
        return topic is not None and is_foreign(topic)

    @property
    def leader(self) -> NodeId:
        topic = self._metadata.state.topics.get(SCHEMAS_TOPIC)
        return NO_LEADER if topic is None else topic.partitions[0].leader

    @property
    def state_here(self) -> RegistryState | None:
        """What the registry holds, if it is on this node: for figures."""
        shard = self._shards.get_now(0)
        return None if shard is None else shard.state_now

    async def run(self, call: RegistryCall) -> RegistryAnswer:
        """Answer a call if this node is the registry; `is_elsewhere` if it is not."""
        try:
            shard = await self._shards.get(0)
            state = await shard.state()
        except RequestError:
            return RegistryAnswer(is_elsewhere=True)
        judge = JudgeFor(self.judging, call.asker)
        try:
            question = QUESTIONS.get(call.operation)
            if question is not None:
                value = await question(state, judge, call)
            else:
                value = await CHANGES[call.operation](shard, judge, call)
            return RegistryAnswer(value=value, work_s=judge.work_s)
        except RegistryError as error:
            return RegistryAnswer(error_code=error.error_code, message=error.message, work_s=judge.work_s)
        except RequestError as error:
            why = f"The change is not surely written: {error}."
            return RegistryAnswer(error_code=50001, message=why, is_unsure=True)

    async def run_empty(self, call: RegistryCall) -> RegistryAnswer:
        """Answer a question before anything was ever registered."""
        judge = JudgeFor(self.judging, call.asker)
        try:
            value = await QUESTIONS[call.operation](RegistryState(), judge, call)
            return RegistryAnswer(value=value, work_s=judge.work_s)
        except RegistryError as error:
            return RegistryAnswer(error_code=error.error_code, message=error.message, work_s=judge.work_s)
