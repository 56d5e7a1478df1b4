"""AlterUserScramCredentials: creates and deletes users, changes passwords (KIP-554).

The client sends the salted password, not the password; what is kept of it is one step further.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final, cast

from chronik.metadata.commands import PutCredential, RemoveCredential
from chronik.model import ErrorCode, RequestError
from chronik.security.acls import Operation
from chronik.security.scram import (
    ITERATIONS_MAX,
    ITERATIONS_MIN,
    MECHANISMS,
    Mechanism,
    check_credential,
    credential_from_salted,
)
from chronik.server.dispatch import Reply, RequestContext, handles, reply
from chronik.server.gate import on_cluster
from chronik.wire.api import ApiKey

if TYPE_CHECKING:
    from kio.schema.alter_user_scram_credentials.v0.request import (
        AlterUserScramCredentialsRequest,
        ScramCredentialDeletion,
        ScramCredentialUpsertion,
    )

COMMANDS_AT_ONCE: Final = 1_000
"""Changes in one entry of the metadata log."""
_BY_NUMBER: Final = {mechanism.number: mechanism for mechanism in MECHANISMS.values()}


def _changes(
    request: AlterUserScramCredentialsRequest,
) -> list[ScramCredentialDeletion | ScramCredentialUpsertion]:
    return [*request.deletions, *request.upsertions]


def _on_error(request: AlterUserScramCredentialsRequest, code: ErrorCode, message: str | None) -> Reply:
    users = dict.fromkeys(one.name for one in _changes(request))
    return reply(results=[_result(user, code, message) for user in users])


@handles(
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS,
    versions=(0, 0),
    needs=on_cluster(Operation.ALTER),
    on_error=_on_error,
)
async def alter_user_scram_credentials(
    request: AlterUserScramCredentialsRequest, ctx: RequestContext
) -> Reply:
    counts = Counter((one.name, one.mechanism) for one in _changes(request))
    failed: dict[str, RequestError] = {}
    commands: list[PutCredential | RemoveCredential] = []
    for one in _changes(request):
        try:
            command = _command(one)
            # As in Apache Kafka: first mistakes in a change itself, then duplicates; one error per user.
            if counts[one.name, one.mechanism] > 1:
                raise RequestError(
                    ErrorCode.duplicate_resource,
                    "A user credential cannot be altered twice in the same request",
                )
            commands.append(command)
        except RequestError as error:
            failed.setdefault(one.name, error)
    # All changes of one user are made, or none.
    commands = [command for command in commands if command.user not in failed]
    for start in range(0, len(commands), COMMANDS_AT_ONCE):
        some = [(command.user, command) for command in commands[start : start + COMMANDS_AT_ONCE]]
        for user, refused in await ctx.services.metadata.submit_each(some):
            failed[user] = RequestError(refused.code, refused.message)
    results = []
    for user in dict.fromkeys(name for name, _ in counts):
        error_of_user = failed.get(user)
        if error_of_user is None:
            results.append(_result(user, ErrorCode.none, None))
        else:
            results.append(_result(user, error_of_user.code, error_of_user.message))
    return reply(results=results)


def _command(one: ScramCredentialDeletion | ScramCredentialUpsertion) -> PutCredential | RemoveCredential:
    if not one.name:
        raise RequestError(ErrorCode.unacceptable_credential, "Username must not be empty")
    mechanism = _mechanism(one.mechanism)
    if hasattr(one, "salt"):
        return _put(cast("ScramCredentialUpsertion", one), mechanism)
    return RemoveCredential(user=one.name, mechanism=mechanism.name)


def _mechanism(number: int) -> Mechanism:
    found = _BY_NUMBER.get(number)
    if found is None:
        raise RequestError(ErrorCode.unsupported_sasl_mechanism, "Unknown SCRAM mechanism")
    return found


def _put(one: ScramCredentialUpsertion, mechanism: Mechanism) -> PutCredential:
    if one.iterations < ITERATIONS_MIN:
        raise RequestError(ErrorCode.unacceptable_credential, "Too few iterations")
    if one.iterations > ITERATIONS_MAX:
        raise RequestError(ErrorCode.unacceptable_credential, "Too many iterations")
    try:
        check_credential(one.name, bytes(one.salt))
    except ValueError as error:
        raise RequestError(ErrorCode.unacceptable_credential, f"{error}.") from None
    credential = credential_from_salted(
        mechanism, bytes(one.salted_password), bytes(one.salt), one.iterations
    )
    return PutCredential(user=one.name, credential=credential)


def _result(user: str, code: ErrorCode, message: str | None) -> dict[str, Any]:
    return {"user": user, "error_code": code, "error_message": message}
