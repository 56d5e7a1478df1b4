"""Group configs (KIP-848): what single consumer groups have other than the brokers' value."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from chronik.metadata.broker_config import broker_value
from chronik.metadata.config_def import INT_MAX, ConfigDef, ConfigKind, check_values
from chronik.metadata.kafka_configs import without_effect
from chronik.model import ErrorCode, RequestError

__all__ = ["GROUP_CONFIGS", "check_group_configs", "group_value"]


def _ms(name: str, default: int, doc: str) -> ConfigDef:
    return ConfigDef(
        name=name,
        kind=ConfigKind.INT,
        default=str(default),
        server_names=((f"group.{name}", 1),),
        low=1,
        high=INT_MAX,
        doc=doc,
    )


_EFFECTIVE: Final = (
    _ms("consumer.heartbeat.interval.ms", 5_000, "How often members of this consumer group report."),
    _ms(
        "consumer.session.timeout.ms",
        45_000,
        "A member of this consumer group that sends no heartbeat within this time is removed.",
    ),
)
_BOUNDS: Final = {
    "consumer.heartbeat.interval.ms": (
        "group.consumer.min.heartbeat.interval.ms",
        "group.consumer.max.heartbeat.interval.ms",
    ),
    "consumer.session.timeout.ms": (
        "group.consumer.min.session.timeout.ms",
        "group.consumer.max.session.timeout.ms",
    ),
}
"""Broker configs that bound a group's value."""

GROUP_CONFIGS: Final[Mapping[str, ConfigDef]] = MappingProxyType(
    dict(sorted({**without_effect("group"), **{one.name: one for one in _EFFECTIVE}}.items()))
)


def group_value(name: str, overrides: Mapping[str, str], brokers_value: int) -> int:
    """The value in force for a group that has `overrides` of its own."""
    if name not in overrides:
        return brokers_value
    try:
        return int(GROUP_CONFIGS[name].parse(overrides[name]))
    except ValueError:
        return brokers_value  # written by another version


def check_group_configs(values: Mapping[str, str | None], layers: tuple[Mapping[str, str], ...]) -> None:
    """RequestError that names the first key that is unknown or has no valid value."""
    check_values("group", GROUP_CONFIGS, values)
    for name, (low, high) in _BOUNDS.items():
        text = values.get(name)
        if text is None:
            continue
        value = GROUP_CONFIGS[name].parse(text)
        if value < broker_value(low, layers):
            raise RequestError(ErrorCode.invalid_config, f"{name} must be greater than or equal to {low}")
        if value > broker_value(high, layers):
            raise RequestError(ErrorCode.invalid_config, f"{name} must be less than or equal to {high}")
