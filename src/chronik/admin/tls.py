"""TLS for the HTTP port: the certificate that a node shows, and those that nodes and commands accept."""

from __future__ import annotations

import ssl
from pathlib import Path

__all__ = ["client_context", "server_context"]


def server_context(certificate: Path, key: Path | None, client_ca: Path | None = None) -> ssl.SSLContext:
    """OSError with a sentence if the files are not what they should be.

    With `client_ca` clients are asked for a certificate. One that it did not sign ends the handshake; who
    shows none proves otherwise who it is.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(certificate, key)
        if client_ca is not None:
            context.load_verify_locations(client_ca)
            context.verify_mode = ssl.CERT_OPTIONAL
    except ssl.SSLError as error:
        files = " and ".join(str(path) for path in (certificate, key, client_ca) if path is not None)
        reason = error.reason or str(error)
        raise OSError(0, f"HTTP cannot use {files} for TLS: {reason.replace('_', ' ').lower()}") from None
    except FileNotFoundError as error:
        missing = next(
            (path for path in (certificate, key, client_ca) if path and not path.exists()), certificate
        )
        raise OSError(error.errno, f"HTTP cannot use TLS: {missing} is not there") from None
    return context


def client_context(*trusted: Path | None) -> ssl.SSLContext:
    """Believes what the system believes, and these files: authorities, or a certificate itself."""
    context = ssl.create_default_context()
    for path in trusted:
        if path is not None:
            context.load_verify_locations(path)
    return context
