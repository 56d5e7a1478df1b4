"""Refuses to start a node that lets in other machines without a secret, unless `insecure` allows it. Checked
however a node is started: by the command or inside another program.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from chronik.config import ConfigError, Settings, is_loopback
from chronik.server.listeners import ListenerSpec, listener_specs

__all__ = ["check_doors", "doors_for_everybody"]

_MAKE: Final = "$(openssl rand -base64 32)"


def check_doors(settings: Settings) -> None:
    """ConfigError, with a way to mend it, if a stranger on another machine would be let in."""
    _check_bind(settings)
    for spec in doors_for_everybody(settings):
        # With an API key the listener of `bind` is open to others as it is: another one adds nothing to that.
        if not settings.insecure and (settings.is_local or settings.admin_api_key is None):
            raise ConfigError(
                f"listener {spec.name} is at {spec.host}:{spec.port} and asks nobody for a login, so other "
                "machines could read and write every record: give it one "
                f"(listener_security_protocol_map={spec.name}:SASL_SSL), let ACLs decide "
                "(--authorizer true), or say --insecure true"
            )


def doors_for_everybody(settings: Settings) -> Iterator[ListenerSpec]:
    """Listeners that other machines reach and that let everybody do everything."""
    if settings.authorizer:
        return
    for spec in listener_specs(settings):
        shows_certificate = spec.has_tls and settings.kafka_tls_client_auth == "required"
        if not (is_loopback(spec.host) or spec.has_sasl or shows_certificate):
            yield spec


def _check_bind(settings: Settings) -> None:
    if settings.is_local:
        return
    if settings.admin_api_key is None and not settings.insecure and not settings.authorizer:
        raise ConfigError(
            f"bind is {settings.bind}, so other machines could read every record over HTTP: set an API key "
            f"(export CHRONIK_ADMIN_API_KEY={_MAKE}), or say --insecure true"
        )
    has_tls = settings.node_tls_cert is not None and settings.node_tls == "required"
    if settings.peers and settings.cluster_secret is None and not has_tls:
        raise ConfigError(
            f"bind is {settings.bind}, so any machine could say that it is a node of this cluster: give all "
            f"nodes the same secret (export CHRONIK_CLUSTER_SECRET={_MAKE}, once, then copied)"
        )
