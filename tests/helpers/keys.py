"""Keys to sign tokens with, made once: each kind that a server may be given."""

from functools import cache
from typing import Any

import jwt
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
