"""Keys to sign tokens with, made once: each kind that a server may be given. And certificates."""

from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any

import jwt
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed448, ed25519, rsa
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

ALGORITHMS = {
    "rsa": ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    "p256": ("ES256",),
    "p384": ("ES384",),
    "ed25519": ("EdDSA",),
}


@cache
def private_key(kind: str = "ed25519", which: int = 0) -> Any:
    """`which` tells keys of one kind apart."""
    del which
    match kind:
        case "rsa":
            return rsa.generate_private_key(65537, 2048)
        case "short rsa":
            return rsa.generate_private_key(65537, 1024)
        case "p256":
            return ec.generate_private_key(ec.SECP256R1())
        case "p384":
            return ec.generate_private_key(ec.SECP384R1())
        case "p521":
            return ec.generate_private_key(ec.SECP521R1())
        case "ed448":
            return ed448.Ed448PrivateKey.generate()
        case _:
            return ed25519.Ed25519PrivateKey.generate()


@cache
def public_pem(kind: str = "ed25519", which: int = 0) -> str:
    key = private_key(kind, which).public_key()
    return key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()


def private_pem(kind: str = "ed25519") -> str:
    key = private_key(kind)
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()


def signed(claims: dict[str, Any], kind: str = "ed25519", algorithm: str = "", which: int = 0):
    return jwt.encode(claims, private_key(kind, which), algorithm or ALGORITHMS[kind][0])


def write_certificate(certificate: Path, key: Path, host: str) -> None:
    """For a server of this name, signed by itself and good for a day."""
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, host)])
    now = datetime.now(UTC)
    signed_by_itself = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(private_key("p256").public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .sign(private_key("p256"), hashes.SHA256())
    )
    key.touch(mode=0o600)
    key.write_text(private_pem("p256"))
    certificate.write_bytes(signed_by_itself.public_bytes(Encoding.PEM))
