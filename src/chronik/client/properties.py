"""`client.properties`, as Apache Kafka's own tools read it: how to reach a cluster that asks who one is.

Certificates are PEM, the form that Kafka calls `ssl.truststore.type=PEM`; a Java key store has to be
exported first. librdkafka's names (`sasl.username`, `ssl.ca.location`) are understood too.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from chronik.client.login import Login
from chronik.client.options import ClientOptions
from chronik.model import ChronikError

__all__ = ["LOGIN_PROPERTIES", "PropertiesError", "login_of", "read_properties", "secured"]

_PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_JAAS_OPTION: Final = re.compile(r'(\w+)\s*=\s*"((?:\\.|[^"\\])*)"')


LOGIN_PROPERTIES: Final = (
    *("sasl.mechanism", "sasl.mechanisms", "sasl.jaas.config"),
    *("sasl.username", "sasl.password", "sasl.oauthbearer.token"),
)


class PropertiesError(ChronikError):
    """The file says something that cannot be done; one sentence for a person."""


def read_properties(path: Path) -> dict[str, str]:
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise PropertiesError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise PropertiesError(f"{path} cannot be read: it is not UTF-8 text") from None
    found = {}
    for line in text.replace("\\\n", "").splitlines():
        line = line.strip()
        if line and line[0] not in "#!":
            name, equals, value = line.partition("=")
            if not equals:
                raise PropertiesError(f"{path}: {name.split()[0]} has no value: write name=value")
            found[name.strip()] = value.strip()
    return found


def secured(options: ClientOptions, properties: Mapping[str, str]) -> ClientOptions:
    """The options, with the protocol, certificates and login that the properties name."""
    protocol = properties.get("security.protocol", "PLAINTEXT").upper()
    if protocol not in _PROTOCOLS:
        raise PropertiesError(f"security.protocol is {protocol}; there are {', '.join(_PROTOCOLS)}")
    return replace(
        options,
        tls=_tls(properties) if protocol.endswith("SSL") else None,
        login=login_of(properties) if protocol.startswith("SASL") else None,
    )


def _tls(properties: Mapping[str, str]) -> ssl.SSLContext:
    for store in ("ssl.truststore", "ssl.keystore"):
        if f"{store}.location" in properties and properties.get(f"{store}.type", "PEM").upper() != "PEM":
            raise PropertiesError(f"{store}.type must be PEM: export the certificates of the Java key store")
    trusted = properties.get("ssl.truststore.location") or properties.get("ssl.ca.location")
    own = properties.get("ssl.keystore.location") or properties.get("ssl.certificate.location")
    try:
        context = ssl.create_default_context(
            cafile=trusted, cadata=properties.get("ssl.truststore.certificates")
        )
        if own is not None:
            password = properties.get("ssl.key.password")
            context.load_cert_chain(own, properties.get("ssl.key.location"), password)
    except OSError as error:
        raise PropertiesError(f"the certificates cannot be used: {error.strerror or error}") from None
    if properties.get("ssl.endpoint.identification.algorithm") in ("", "none"):
        context.check_hostname = False
    return context


def login_of(properties: Mapping[str, str]) -> Login:
    """What `LOGIN_PROPERTIES` say."""
    jaas = dict(_JAAS_OPTION.findall(properties.get("sasl.jaas.config", "")))
    user = properties.get("sasl.username") or jaas.get("username", "")
    password = properties.get("sasl.password") or jaas.get("password", "")
    mechanism = properties.get("sasl.mechanism") or properties.get("sasl.mechanisms")
    if mechanism is None:
        raise PropertiesError("sasl.mechanism is missing: SCRAM-SHA-256, SCRAM-SHA-512, PLAIN or OAUTHBEARER")
    if mechanism == "OAUTHBEARER":
        password = properties.get("sasl.oauthbearer.token", password)
    elif not user or not password:
        raise PropertiesError(
            "sasl.jaas.config names no username and password; sasl.username and "
            "sasl.password would do as well"
        )
    return Login(
        mechanism=mechanism,
        user=user,
        password=password,
        by_token=jaas.get("tokenauth", "").lower() == "true",
    )
