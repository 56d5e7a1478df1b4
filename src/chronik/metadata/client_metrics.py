"""Client metrics subscriptions (KIP-714): which clients send which of their metrics, and how often."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from chronik.metadata.config_def import ConfigDef, ConfigKind, check_values
from chronik.metadata.regular_expressions import compile_expression
from chronik.model import ErrorCode, RequestError

__all__ = [
    "ALL_METRICS",
    "CLIENT_METRICS_CONFIGS",
    "MATCH_KEYS",
    "MetricsSubscription",
    "check_client_metrics",
]

INTERVAL_MS: Final = 300_000
ALL_METRICS: Final = "*"
MATCH_KEYS: Final = (
    "client_instance_id",
    "client_id",
    "client_software_name",
    "client_software_version",
    "client_source_address",
    "client_source_port",
)
_PATTERN_LENGTH_MAX: Final = 1_000

_DEFINITIONS: Final = (
    ConfigDef(
        name="interval.ms",
        kind=ConfigKind.INT,
        default=str(INTERVAL_MS),
        low=100,
        high=3_600_000,
        doc="How often the clients of this subscription send their metrics.",
    ),
    ConfigDef(
        name="match",
        kind=ConfigKind.LIST,
        default="",
        doc="Which clients: expressions such as client_id=app.*, of which all must match; empty means all.",
    ),
    ConfigDef(
        name="metrics",
        kind=ConfigKind.LIST,
        default="",
        doc="Which metrics, by the start of their names; * means all, empty none.",
    ),
)
CLIENT_METRICS_CONFIGS: Final[Mapping[str, ConfigDef]] = MappingProxyType(
    {one.name: one for one in _DEFINITIONS}
)


@dataclass(frozen=True, slots=True)
class MetricsSubscription:
    name: str
    metrics: tuple[str, ...]
    interval_ms: int
    match: Mapping[str, Any]
    """Compiled expressions by what they look at."""

    @staticmethod
    def parse(name: str, configs: Mapping[str, str]) -> MetricsSubscription:
        """ValueError with the reason if a value cannot be read."""
        values = {
            key: one.parse(configs.get(key, one.default or "")) for key, one in CLIENT_METRICS_CONFIGS.items()
        }
        return MetricsSubscription(name, values["metrics"], values["interval.ms"], _patterns(values["match"]))

    def is_for(self, client: Mapping[str, str]) -> bool:
        """Whether every expression matches; `client` has a value for each of MATCH_KEYS."""
        return all(pattern.fullmatch(client[key]) for key, pattern in self.match.items())


def _patterns(items: tuple[str, ...]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for item in items:
        key, separator, text = (part.strip() for part in item.partition("="))
        if not separator or not text or key not in MATCH_KEYS:
            raise ValueError(f"Illegal client matching pattern: {item}; keys are {', '.join(MATCH_KEYS)}")
        if len(text) > _PATTERN_LENGTH_MAX:
            raise ValueError(f"A pattern of {len(text)} characters is longer than {_PATTERN_LENGTH_MAX}")
        try:
            found[key] = compile_expression(text)
        except ValueError as error:
            raise ValueError(f"Illegal client matching pattern: {item}: {error}") from None
    return found


def check_client_metrics(values: Mapping[str, str | None]) -> None:
    """RequestError that names the first key that is unknown or has no valid value."""
    check_values("client metrics", CLIENT_METRICS_CONFIGS, values, unknown=ErrorCode.invalid_request)
    try:
        MetricsSubscription.parse("", {name: text for name, text in values.items() if text is not None})
    except ValueError as error:
        raise RequestError(ErrorCode.invalid_config, str(error)) from None
