"""Certificates and keys of a deployment: an authority of its own, the server's certificate, a key pair per node."""

from base64 import b64decode
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

Key = ec.EllipticCurvePrivateKey


def new_key() -> Key:
    """Draw a private key; Flower wants NIST's curves."""
    return ec.generate_private_key(ec.SECP384R1())


def authority(key: Key, days: int) -> x509.Certificate:
    """Return the certificate of a new authority; it can vouch for servers, not for other authorities."""
    name = _name("hcfl federation authority")
    return (
        _builder(name, name, key, days)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA384())
    )


def server_certificate(
    issuer: x509.Certificate, issuer_key: Key, key: Key, hosts: list[str], days: int
) -> x509.Certificate:
    """Return a certificate for a server that is reached under these names and addresses."""
    identifier = x509.SubjectKeyIdentifier.from_public_key(issuer_key.public_key())
    return (
        _builder(_name(hosts[0]), issuer.subject, key, days)
        .add_extension(x509.SubjectAlternativeName([_alternative(host) for host in hosts]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier),
            critical=False,
        )
        .sign(issuer_key, hashes.SHA384())
    )


def certificate_file(certificate: x509.Certificate) -> bytes:
    """Return a certificate as PEM."""
    return certificate.public_bytes(serialization.Encoding.PEM)


def tls_key_file(key: Key) -> bytes:
    """Return a private key as PEM, not encrypted: servers start by themselves."""
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def node_key_file(key: Key) -> bytes:
    """Return a node's private key as Flower reads it: OpenSSH."""
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    )


def public_line(public: ec.EllipticCurvePublicKey, comment: str) -> str:
    """Return a node's public key as a line in OpenSSH's format."""
    line = public.public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH).decode()
    return f"{line} {comment}\n"


def public_blob(public: ec.EllipticCurvePublicKey) -> bytes:
    """Return the bytes of a public key whose digest is its fingerprint."""
    return b64decode(public_line(public, "").split()[1])


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name[:64])])


def _builder(subject: x509.Name, issuer: x509.Name, key: Key, days: int) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))  # clocks differ
        .not_valid_after(now + timedelta(days=days))
    )


def _usage(signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _alternative(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        return x509.DNSName(host)
