"""The door for nodes listens where the server's host says, and nowhere else."""

import shutil
import socket
import ssl
import urllib.error
import urllib.request
from contextlib import contextmanager

import pytest
from cryptography import x509
from processes import Processes, free_ports, wait_for

from hcfl.errors import InputError
from hcfl.flower import deploy
from hcfl.flower.deploy import Site


def listens(folder) -> list[str]:
    lines = (folder / "server" / "nginx.conf").read_text().splitlines()
    return [line.strip() for line in lines if line.strip().startswith("listen ")]


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", "listen 127.0.0.1:9443 ssl;"),
        ("127.0.0.7", "listen 127.0.0.7:9443 ssl;"),
        ("localhost", "listen 127.0.0.1:9443 ssl;"),
        ("::1", "listen [::1]:9443 ssl;"),
        ("0:0:0:0:0:0:0:1", "listen [::1]:9443 ssl;"),
        ("2001:db8::7", "listen [::]:9443 ssl;"),
        ("192.0.2.7", "listen 9443 ssl;"),
        ("fl.example.org", "listen 9443 ssl;"),
    ],
)
def test_the_front_listens_where_the_host_is(tmp_path, host, expected):
    deploy.init(tmp_path / "site", Site(("a",), host))
    assert listens(tmp_path / "site") == [expected]


def test_an_ipv6_address_is_an_address_in_the_certificate_and_in_brackets_elsewhere(tmp_path):
    deploy.init(tmp_path / "site", Site(("a",), "0:0::1"))
    server = x509.load_pem_x509_certificate((tmp_path / "site" / "server" / "server.crt").read_bytes())
    names = server.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert [str(address) for address in names.get_values_for_type(x509.IPAddress)] == ["::1", "127.0.0.1"]
    assert names.get_values_for_type(x509.DNSName) == ["localhost"]
    assert "--superlink [::1]:9443" in (tmp_path / "site" / "clients" / "a" / "start.sh").read_text()
    assert "reach [::1]:9443;" in (tmp_path / "site" / "clients" / "a" / "README.md").read_text()


@pytest.mark.parametrize("host", ["::1%eth0", "fe80::1%$(reboot)", "[::1]"])
def test_zones_and_brackets_are_no_part_of_a_host(tmp_path, host):
    with pytest.raises(InputError, match="must be a name such as"):
        deploy.init(tmp_path / "site", Site(("a",), host))


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as one:
            one.bind(("::1", 0))
    except OSError:
        return False
    return True


@contextmanager
def front(folder, host):
    port = free_ports(2)[1]
    deploy.init(folder / "site", Site(("a",), host, port - 1, port))
    programs = Processes(folder)
    try:
        programs.start("front", folder / "site" / "server" / "front.sh")
        yield port, programs
    finally:
        programs.stop()


def answers(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), timeout=2).close()
    except OSError:
        return False
    return True


needs_nginx = pytest.mark.skipif(
    shutil.which("nginx") is None and shutil.which("/usr/sbin/nginx") is None, reason="nginx is not installed"
)


@needs_nginx
@pytest.mark.parametrize(
    "host", ["127.0.0.1", pytest.param("::1", marks=pytest.mark.skipif(not has_ipv6(), reason="no IPv6"))]
)
def test_a_client_reaches_the_front_and_trusts_it(tmp_path, host):
    with front(tmp_path, host) as (port, programs):
        wait_for("the front", lambda: answers(host, port), 10)
        trust = ssl.create_default_context(cafile=tmp_path / "site" / "clients" / "a" / "ca.crt")
        address = f"[{host}]" if ":" in host else host
        with pytest.raises(urllib.error.HTTPError, match="403"):
            urllib.request.urlopen(f"https://{address}:{port}/", context=trust, timeout=10)
        assert "emerg" not in programs.log("front")


@needs_nginx
def test_a_front_on_this_machine_is_not_reached_from_another(tmp_path):
    with front(tmp_path, "127.0.0.1") as (port, _):
        wait_for("the front", lambda: answers("127.0.0.1", port), 10)
        assert not answers("127.0.0.2", port)  # an address of this machine on which a front for all would answer
