"""Creates a certificate authority and certificates for nodes, for clusters that have none (`chronik cluster
certs`)."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from chronik.links.certificates import NodeName
from chronik.private_files import make_private, open_private

CA_FILE: Final = "ca.pem"
CA_KEY_FILE: Final = "ca-key.pem"
CA_DAYS: Final = 3650
_CLOCK_SKEW: Final = timedelta(hours=1)


class Authority:
    """A directory with the authority's certificate and key, to which nodes' certificates are added."""

    def __init__(self, folder: Path, now: datetime) -> None:
        """Read the authority that is there, or make one."""
        self._folder = folder
        self._now = now
        make_private(folder)
        cert, key = folder / CA_FILE, folder / CA_KEY_FILE
        self.is_new = not cert.exists()
        if self.is_new:
            self._key = ec.generate_private_key(ec.SECP256R1())
            self._cert = self._self_signed()
            _write(key, _pem(self._key))
            _write(cert, self._cert.public_bytes(Encoding.PEM))
            return
        self._cert = x509.load_pem_x509_certificate(cert.read_bytes())
        loaded = load_pem_private_key(key.read_bytes(), None)
        if not isinstance(loaded, ec.EllipticCurvePrivateKey):
            raise ValueError(f"{key} is no key that this command makes")
        self._key = loaded

    def _self_signed(self) -> x509.Certificate:
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "chronik nodes")])
        return (
            _builder(subject, subject, self._key.public_key(), self._now, CA_DAYS)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(is_authority=True), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(self._key.public_key()), critical=False)
            .sign(self._key, hashes.SHA256())
        )

    def certify(self, name: NodeName, days: int) -> tuple[Path, Path]:
        """Write a certificate for a node, and its key, over any that is there; their files."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"chronik node {name.node_id}")])
        both = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        names = x509.SubjectAlternativeName([x509.UniformResourceIdentifier(name.uri)])
        certificate = (
            _builder(subject, self._cert.subject, key.public_key(), self._now, days)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(is_authority=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage(both), critical=False)
            .add_extension(names, critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False
            )
            .sign(self._key, hashes.SHA256())
        )
        cert_file, key_file = node_files(self._folder, name.node_id)
        _write(key_file, _pem(key))
        _write(cert_file, certificate.public_bytes(Encoding.PEM))
        return cert_file, key_file


def node_files(folder: Path, node_id: int) -> tuple[Path, Path]:
    """Where `certify` puts a node's certificate and its key."""
    return folder / f"node-{node_id}.pem", folder / f"node-{node_id}-key.pem"


def make_certificates(
    folder: Path, cluster_id: str, nodes: Iterable[int], now: datetime, days: int
) -> tuple[Authority, list[tuple[Path, Path]]]:
    authority = Authority(folder, now)
    return authority, [authority.certify(NodeName(cluster_id, node), days) for node in nodes]


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, now: datetime, days: int
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCK_SKEW)
        .not_valid_after(now + timedelta(days=days))
    )


def _usage(*, is_authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not is_authority,
        key_cert_sign=is_authority,
        crl_sign=is_authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _write(path: Path, data: bytes) -> None:
    """Replaced in one step: a node that reads it again never sees half a file."""
    new = path.with_suffix(".new")
    with open_private(new, "wb") as file:
        file.write(data)
    new.replace(path)
