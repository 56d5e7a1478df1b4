"""The first user of a cluster, who is there before anybody can log in to make one.

`chronik init` leaves a file in the data directory of one node; when that node has joined its cluster and the
cluster has no users yet, it makes the user and lets it do everything by ACLs. The file holds no password,
only what SCRAM keeps of one, and is deleted afterwards.
"""

from __future__ import annotations

import logging
import secrets
from pathlib import Path
from typing import Final

import msgspec

from chronik.metadata.commands import AddAcls, Batch, PutCredential
from chronik.metadata.store import MetadataStore
from chronik.private_files import make_private, open_private
from chronik.security.acls import CLUSTER_NAME, WILDCARD, AclBinding, Operation, ResourceType
from chronik.security.principals import user_principal
from chronik.security.scram import ITERATIONS_DEFAULT, MECHANISMS, SALT_BYTES, Credential, make_credential

__all__ = ["FILE_NAME", "admit_first_user", "check_first_user", "write_first_user"]

log = logging.getLogger(__name__)

FILE_NAME: Final = "first-user.json"


class _FirstUser(msgspec.Struct, frozen=True, kw_only=True):
    version: int
    user: str
    credentials: tuple[Credential, ...]


def write_first_user(data_dir: Path, user: str, password: str) -> Path:
    credentials = tuple(
        make_credential(mechanism, password, secrets.token_bytes(SALT_BYTES), ITERATIONS_DEFAULT)
        for mechanism in MECHANISMS.values()
    )
    make_private(data_dir)
    path = data_dir / FILE_NAME
    with open_private(path, "wb") as file:
        file.truncate()
        file.write(msgspec.json.encode(_FirstUser(version=1, user=user, credentials=credentials)))
    return path


def check_first_user(path: Path) -> None:
    """Raises MsgspecError if the file is damaged."""
    _read(path)


def _read(path: Path) -> _FirstUser:
    return msgspec.json.decode(path.read_bytes(), type=_FirstUser)


async def admit_first_user(data_dir: Path, metadata: MetadataStore) -> str | None:
    """Make the user that the file names, if there is a file and nobody yet; its name."""
    path = data_dir / FILE_NAME
    if not path.exists():
        return None
    given = _read(path)
    if metadata.state.security.users:
        log.warning("%s is not needed: the cluster has users already; delete it", path)
        return None
    commands = [PutCredential(user=given.user, credential=one) for one in given.credentials]
    acls = tuple(
        AclBinding(
            resource_type=kind,
            resource_name=CLUSTER_NAME if kind is ResourceType.CLUSTER else WILDCARD,
            principal=user_principal(given.user),
            operation=Operation.ALL,
        )
        for kind in ResourceType
        if kind is not ResourceType.ANY
    )
    await metadata.submit(Batch(commands=(*commands, AddAcls(bindings=acls))))
    path.unlink()
    log.info("created super user %s from %s", given.user, path)
    return given.user
