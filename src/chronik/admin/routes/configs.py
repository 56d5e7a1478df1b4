"""Settings of the node, configs of topics."""

from __future__ import annotations

import msgspec

from chronik.admin.endpoint import HttpAccess, HttpCall, endpoint
from chronik.admin.needs import on_topic
from chronik.admin.routes.topics import config_text, known_topic
from chronik.config import table
from chronik.metadata.commands import TOPIC_RESOURCE
from chronik.metadata.topic_config import TOPIC_CONFIGS, TopicConfig
from chronik.model import Int64
from chronik.security.acls import Operation
from chronik.server.config_changes import set_configs
from chronik.server.gate import on_cluster


class SettingView(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    value: str | None
    doc: str


class SettingList(msgspec.Struct, frozen=True):
    settings: list[SettingView]


class ConfigView(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    value: str
    is_set: bool
    """Set for this topic; otherwise the brokers' value or the default."""
    doc: str


class ConfigList(msgspec.Struct, frozen=True):
    topic: str
    configs: list[ConfigView]


class ConfigChanges(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    config: dict[str, str | Int64 | float | bool | None]
    """null puts a config back to its default."""


@endpoint(
    "GET",
    "/admin/config",
    needs=on_cluster(Operation.DESCRIBE_CONFIGS),
    summary="The node's settings, secrets left out",
    answer=SettingList,
    always=True,
)
async def settings(call: HttpCall) -> SettingList:
    rows = []
    for setting in table().values():
        value = getattr(call.context.settings, setting.name)
        if value is not None:
            value = "(hidden)" if setting.rule.secret else config_text(value)
        rows.append(SettingView(name=setting.name, value=value, doc=setting.doc))
    return SettingList(rows)


@endpoint(
    "GET",
    "/admin/topics/{name}/config",
    needs=on_topic(Operation.DESCRIBE_CONFIGS),
    summary="A topic's configs",
    answer=ConfigList,
)
async def topic_config(call: HttpCall) -> ConfigList:
    topic = known_topic(call.context, call.path["name"])
    in_force: TopicConfig = call.context.services.topic_config(topic.name)
    rows = []
    for name, definition in TOPIC_CONFIGS.items():
        value = getattr(in_force, name.replace(".", "_"), None)
        if value is None:  # without effect here: show what was set, or the default
            value = topic.configs.get(name, definition.default or "")
        text = ",".join(value) if isinstance(value, tuple) else config_text(value)
        rows.append(ConfigView(name=name, value=text, is_set=name in topic.configs, doc=definition.doc))
    return ConfigList(topic.name, rows)


@endpoint(
    "POST",
    "/admin/topics/{name}/config",
    needs=on_topic(Operation.ALTER_CONFIGS),
    summary="Change a topic's configs",
    body=ConfigChanges,
    answer=ConfigList,
    access=HttpAccess.CHANGE,
)
async def change_topic_config(call: HttpCall) -> ConfigList:
    """All of them or none."""
    topic = known_topic(call.context, call.path["name"])
    values = {name: None if v is None else config_text(v) for name, v in call.body.config.items()}
    services = call.context.services
    command = set_configs(services, call.access, TOPIC_RESOURCE, topic.name, values, replace=False)
    await services.metadata.submit(command)
    found: ConfigList = await topic_config.function(call)
    return found
