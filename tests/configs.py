"""Configs of a running broker, changed as any admin client would."""

from __future__ import annotations

from typing import Any

import confluent_kafka.admin

_admin: Any = confluent_kafka.admin  # parts of it are not in its type hints
DEADLINE_S = 60


def set_configs(bootstrap: str, kind: str, name: str, values: dict[str, str]) -> None:
    """`kind` is "broker" or "topic"."""
    entries = [
        _admin.ConfigEntry(key, value, incremental_operation=_admin.AlterConfigOpType.SET)
        for key, value in values.items()
    ]
    resource = _admin.ConfigResource(
        _admin.ConfigResource.Type[kind.upper()], name, incremental_configs=entries
    )
    client = _admin.AdminClient({"bootstrap.servers": bootstrap})
    client.incremental_alter_configs([resource])[resource].result(DEADLINE_S)
