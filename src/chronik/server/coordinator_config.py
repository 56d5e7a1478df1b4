"""The configs of the coordinators as the cluster and this node's settings have them now."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Generic, TypeVar

from chronik.config import Settings
from chronik.groups.shard import CoordinatorConfig
from chronik.metadata.store import MetadataStore
from chronik.server.services import broker_configs
from chronik.transactions.coordinator import TransactionConfig

__all__ = ["LatestConfig", "group_config", "transaction_config"]

C = TypeVar("C")


class LatestConfig(Generic[C]):
    """The configs in force, resolved again only after the metadata has changed."""

    def __init__(
        self,
        metadata: MetadataStore,
        settings: Settings,
        resolve: Callable[[tuple[Mapping[str, str], ...]], C],
    ) -> None:
        self._metadata = metadata
        self._settings = settings
        self._resolve = resolve
        self._index = metadata.state.applied_index
        self._config = resolve(broker_configs(metadata.state, settings))

    def __call__(self) -> C:
        state = self._metadata.state
        if self._index != state.applied_index:
            self._index = state.applied_index
            self._config = self._resolve(broker_configs(state, self._settings))
        return self._config


def group_config(metadata: MetadataStore, settings: Settings) -> LatestConfig[CoordinatorConfig]:
    def resolve(layers: tuple[Mapping[str, str], ...]) -> CoordinatorConfig:
        return CoordinatorConfig.resolve(
            layers,
            topic_partitions=settings.offsets_topic_partitions,
            group_configs=metadata.state.group_configs,
        )

    return LatestConfig(metadata, settings, resolve)


def transaction_config(metadata: MetadataStore, settings: Settings) -> LatestConfig[TransactionConfig]:
    resolve = partial(TransactionConfig.resolve, topic_partitions=settings.transactions_topic_partitions)
    return LatestConfig(metadata, settings, resolve)
