"""A site is complete, secret where it has to be, and nothing of it is overwritten."""

import json
import shutil
import subprocess
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key

from hcfl import flower
from hcfl.cli import main
from hcfl.errors import InputError
from hcfl.flower import deploy
from hcfl.flower.deploy import Site


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site") / "new"
    deploy.init(folder, Site(("ward-1", "ward-2"), "fl.example.org", 9090, 9443))
    return folder


def certificate(path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(path.read_bytes())


def test_every_place_in_a_template_is_filled(site):
    files = [path for path in site.rglob("*") if path.is_file()]
    assert len(files) > 30
    assert [path for path in files if b"{{" in path.read_bytes()] == []


def test_only_the_owner_reads_private_keys(site):
    secret = {path.name for path in site.rglob("*") if path.is_file() and path.stat().st_mode & 0o077 == 0}
    assert secret == {"ca.key", "server.key", "superexec.secret", "watch.token", "node.key"}
    others = [path for path in site.rglob("*") if path.is_file() and path.name not in secret]
    assert [path for path in others if b"PRIVATE" in path.read_bytes()] == []


def test_a_client_gets_its_own_key_and_no_other(site):
    for name in ("ward-1", "ward-2"):
        key = load_ssh_private_key((site / "clients" / name / "node.key").read_bytes(), None)
        public = load_ssh_public_key((site / "server" / "keys" / f"{name}.pub").read_bytes())
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        assert key.public_key() == public
    keys = {path.read_bytes() for path in site.rglob("*.key")}
    assert len(keys) == 4
    assert sorted(path.name for path in (site / "clients" / "ward-1").iterdir()) == [
        "README.md",
        "ca.crt",
        "environment",
        "hcfl-node-ward-1.service",
        "node.key",
        "start.sh",
        "supervise.sh",
    ]


def test_the_certificate_is_the_servers_and_the_authority_vouches_for_it(site):
    authority, server = certificate(site / "authority" / "ca.crt"), certificate(site / "server" / "server.crt")
    server.verify_directly_issued_by(authority)
    names = server.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["fl.example.org", "localhost"]
    assert [str(address) for address in names.get_values_for_type(x509.IPAddress)] == ["127.0.0.1"]
    assert not server.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert timedelta(days=820) < server.not_valid_after_utc - datetime.now(UTC) < timedelta(days=826)
    assert (site / "clients" / "ward-1" / "ca.crt").read_bytes() == (site / "authority" / "ca.crt").read_bytes()


def test_the_authoritys_key_is_nowhere_else(site):
    key = (site / "authority" / "ca.key").read_bytes()
    assert [path.name for path in site.rglob("*") if path.is_file() and path.read_bytes() == key] == ["ca.key"]


def test_nodes_reach_the_front_and_the_superlink_stays_at_home(site):
    assert "--superlink fl.example.org:9443" in (site / "clients" / "ward-1" / "start.sh").read_text()
    assert "--host 127.0.0.1 --port 9090" in (site / "server" / "superlink.sh").read_text()
    assert "--port 9094" in (site / "clients" / "ward-1" / "start.sh").read_text()
    assert "--port 9095" in (site / "clients" / "ward-2" / "start.sh").read_text()


def test_scripts_are_shell(site):
    scripts = list(site.rglob("*.sh"))
    assert len(scripts) == 10 + 2 * 2
    for script in scripts:
        assert script.stat().st_mode & 0o111
        subprocess.run(["sh", "-n", str(script)], check=True)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "usage"),
        (["--data"], "usage"),
        (["--data", "a.npz", "more"], "usage"),
        (["--data", "here.npz"], "must be a full path"),
        (["--data", "/no/such.npz"], "cannot be read"),
        (["--data", "/tmp/it's.npz"], "a path with a quote cannot be passed on"),
    ],
)
def test_a_node_without_its_data_says_so(site, arguments, words):
    script = site / "clients" / "ward-1" / "start.sh"
    said = subprocess.run([str(script), *arguments], capture_output=True, text=True, check=False)
    assert said.returncode == 2
    assert words in said.stderr
    assert said.stderr.count("\n") == 1


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_units_are_units(site):
    for unit in site.rglob("*.service"):
        said = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, check=False)
        wrong = [line for line in said.stderr.splitlines() if "is not executable: No such file" not in line]
        assert wrong == []  # that the programs are not in /opt yet is all it may say


def test_clients_are_added_and_the_rest_stays(tmp_path):
    deploy.init(tmp_path / "site", Site(("a",)))
    before = {path: path.read_bytes() for path in (tmp_path / "site").rglob("*") if path.is_file()}
    deploy.add(tmp_path / "site", ["b", "c"])
    changed = [path.name for path, content in before.items() if path.read_bytes() != content]
    assert changed == ["site.json"]
    assert json.loads((tmp_path / "site" / "site.json").read_text())["clients"] == ["a", "b", "c"]
    assert "--port 9096" in (tmp_path / "site" / "clients" / "c" / "start.sh").read_text()
    with pytest.raises(InputError, match="clients = 'B': two clients have this name"):
        deploy.add(tmp_path / "site", ["B"])
    with pytest.raises(InputError, match="is not a site that `hcfl deploy init` wrote"):
        deploy.add(tmp_path, ["d"])


def test_nothing_is_overwritten_unless_asked(tmp_path):
    deploy.init(tmp_path / "site", Site(("a",)))
    key = (tmp_path / "site" / "server" / "server.key").read_bytes()
    with pytest.raises(InputError, match="is not empty; choose another, or replace its keys with --force"):
        deploy.init(tmp_path / "site", Site(("a",)))
    assert (tmp_path / "site" / "server" / "server.key").read_bytes() == key
    deploy.init(tmp_path / "site", Site(("a",)), force=True)
    assert (tmp_path / "site" / "server" / "server.key").read_bytes() != key


def test_it_says_where_it_cannot_write(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="is not empty"):
        deploy.init(tmp_path / "file", Site(("a",)))
    with pytest.raises(InputError, match=r"cannot be written \(Not a directory\)"):
        deploy.init(tmp_path / "file" / "site", Site(("a",)))


@pytest.mark.parametrize("name", ["", "a b", "../x", "-a", ".a", "a/b", "ä", "a" * 64, "a'b", 'a"b', "$(x)", "a\n"])
def test_names_that_could_do_harm_are_refused(tmp_path, name):
    with pytest.raises(InputError, match="a name is made of letters, digits"):
        deploy.init(tmp_path / "site", Site((name,)))
    assert not (tmp_path / "site").exists()


@pytest.mark.parametrize(
    "host", ["", "a b", "a_b", "-a.org", "a..b", "https://a.org", "a.org:443", "300.1.1.1", "a" * 64]
)
def test_hosts_that_are_none_are_refused(tmp_path, host):
    with pytest.raises(InputError, match="must be a name such as"):
        deploy.init(tmp_path / "site", Site(("a",), host))


@pytest.mark.parametrize("host", ["localhost", "fl.example.org", "192.0.2.7", "2001:db8::7", "a-b.c1"])
def test_hosts_that_are_some_are_accepted(tmp_path, host):
    deploy.init(tmp_path / "site", Site(("a",), host))
    address = f"[{host}]" if ":" in host else host
    assert f"--superlink {address}:9443" in (tmp_path / "site" / "clients" / "a" / "start.sh").read_text()


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--port", "0"], "--port 0: must be a whole number from 1 on"),
        (["--port", "x"], "--port x: must be a whole number"),
        (["--port", "70000"], "port = 70000: must be from 1 to 65535"),
        (["--front-port", "70000"], "front-port = 70000: must be from 1 to 65535"),
        (["--node-port", "65535"], "node-port = 65536: must be from 1 to 65535"),
        (["--port", "9443"], "front-port = 9443: must differ from port"),
        (["--host", "no host"], "host = 'no host': must be a name"),
        (["--clients", "a", "a"], "clients = 'a': two clients have this name"),
    ],
)
def test_bad_settings_are_one_sentence(tmp_path, capsys, flags, words):
    assert main(["deploy", "init", str(tmp_path / "site"), "--clients", "a", "b", *flags]) == 2
    said = capsys.readouterr().err
    assert words in said
    assert said.count("\n") == 1


def test_the_command_writes_a_site(tmp_path, capsys):
    assert main(["deploy", "init", str(tmp_path / "site"), "--clients", "a", "b", "--host", "fl.example.org"]) == 0
    assert "README.md" in capsys.readouterr().out
    assert main(["deploy", "add", str(tmp_path / "site"), "--clients", "c"]) == 0
    assert (tmp_path / "site" / "clients" / "c" / "node.key").exists()


def test_without_the_extra_it_is_said(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(flower, "find_spec", lambda name: None)
    assert main(["deploy", "init", str(tmp_path / "site"), "--clients", "a"]) == 2
    assert capsys.readouterr().err == "hcfl: deploy: needs the extra, pip install 'hcfl[flower]'\n"
