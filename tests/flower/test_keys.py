"""One name, one key: keys are replaced, revoked and listed, and the server lets in those that are valid."""

import shutil
import stat
import subprocess
from dataclasses import dataclass, field, replace

import pytest
from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key
from processes import Processes, free_ports

from hcfl.cli import main
from hcfl.errors import InputError
from hcfl.flower import deploy, key_folder, register
from hcfl.flower.deploy import Site


@pytest.fixture
def site(tmp_path):
    deploy.init(tmp_path / "site", Site(("north", "south")))
    return tmp_path / "site"


def key_of(site, name: str) -> key_folder.NodeKey:
    """Return the valid key of a client."""
    (key,) = [key for key in key_folder.read(site / "server" / "keys") if key.name == name and not key.revoked]
    return key


@dataclass
class SuperLink:
    """Flower's rules: a key is registered once, also after it was unregistered; names are not looked at."""

    registered: list[register.Node] = field(default_factory=list)

    def nodes(self) -> list[register.Node]:
        return list(self.registered)

    def let_in(self, key: key_folder.NodeKey) -> None:
        assert key.fingerprint not in [node.fingerprint for node in self.registered], "Public key already in use"
        self.registered.append(register.Node(len(self.registered) + 1, key.name, key.fingerprint, True))

    def put_out(self, number: int) -> None:
        at = number - 1
        assert self.registered[at].member
        self.registered[at] = replace(self.registered[at], member=False)

    def members(self) -> list[tuple[str, str]]:
        return [(node.name, node.fingerprint) for node in self.registered if node.member]


def registered(site, superlink, *replaced: str) -> list[tuple[str, bool]]:
    return [(said.text, said.done) for said in register.settle(site / "server" / "keys", superlink, replaced)]


def test_keys_are_let_in_once(site):
    superlink = SuperLink()
    assert registered(site, superlink) == [("north: is let in", True), ("south: is let in", True)]
    assert registered(site, superlink) == [("north: was let in before", True), ("south: was let in before", True)]
    assert superlink.members() == [(name, key_of(site, name).fingerprint) for name in ("north", "south")]


def test_a_key_that_was_unregistered_is_said_to_be_revoked(site):
    superlink = SuperLink()
    registered(site, superlink)
    superlink.put_out(1)
    said, done = registered(site, superlink)[0]
    assert done
    fingerprint = key_of(site, "north").fingerprint
    assert said == (
        f"north: its key {fingerprint} is revoked; let it in again with a new one: hcfl deploy rotate SITE north"
    )


def test_a_second_key_under_a_name_is_refused(site, tmp_path):
    superlink = SuperLink()
    registered(site, superlink)
    first = key_of(site, "north").fingerprint
    deploy.init(tmp_path / "other", Site(("north",)))
    shutil.copy(tmp_path / "other" / "server" / "keys" / "north.pub", site / "server" / "keys" / "north.pub")
    second = key_of(site, "north").fingerprint
    before = superlink.members()
    (said, done), (other, _) = registered(site, superlink)
    assert not done
    assert said == (
        f"north: the key {second} is refused: {first} is let in under this name, and one name has one key; "
        "a new key is made by hcfl deploy rotate SITE north, and ./register.sh --replace north puts all others out"
    )
    assert other == "south: was let in before"
    assert superlink.members() == before
    assert registered(site, superlink, "north")[0] == ("north: is let in", True)
    assert [fingerprint for name, fingerprint in superlink.members() if name == "north"] == [second]


def test_a_key_is_not_let_in_under_two_names(site):
    keys = site / "server" / "keys"
    shutil.copy(keys / "north.pub", keys / "west.pub")
    superlink = SuperLink()
    said = registered(site, superlink)
    fingerprint = key_of(site, "north").fingerprint
    refused = f"west: the key {fingerprint} is refused: it is let in as 'north'; "
    assert said[-1] == (refused + "a new key is made by hcfl deploy rotate SITE west", False)
    assert [name for name, _ in superlink.members()] == ["north", "south"]


def test_after_a_rotation_only_the_new_key_is_let_in(site):
    superlink = SuperLink()
    registered(site, superlink)
    old, private = key_of(site, "north").fingerprint, (site / "clients" / "north" / "node.key").read_bytes()
    deploy.rotate(site, "north")
    new, path = key_of(site, "north").fingerprint, site / "clients" / "north" / "node.key"
    assert new != old
    assert path.read_bytes() != private
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    public = load_ssh_public_key((site / "server" / "keys" / "north.pub").read_bytes())
    assert load_ssh_private_key(path.read_bytes(), None).public_key() == public
    assert ("north", old) in superlink.members()  # until the new one is registered
    said = registered(site, superlink)
    assert said == [
        ("north: is let in", True),
        ("south: was let in before", True),
        (f"north: its old key {old} is out", True),
    ]
    assert [fingerprint for name, fingerprint in superlink.members() if name == "north"] == [new]
    assert registered(site, superlink) == [("north: was let in before", True), ("south: was let in before", True)]


def test_a_rotation_writes_the_clients_folder_where_it_was_given_away(site):
    before = sorted(path.name for path in (site / "clients" / "south").iterdir())
    shutil.rmtree(site / "clients" / "south")
    deploy.rotate(site, "south")
    assert sorted(path.name for path in (site / "clients" / "south").iterdir()) == before
    assert "--port 9095" in (site / "clients" / "south" / "start.sh").read_text()


def test_a_rotation_leaves_the_clients_own_files(site):
    (site / "clients" / "south" / "start.sh").write_text("mine")
    deploy.rotate(site, "south")
    assert (site / "clients" / "south" / "start.sh").read_text() == "mine"


def test_a_revoked_client_is_out_until_it_has_a_new_key(site):
    superlink = SuperLink()
    registered(site, superlink)
    old = key_of(site, "north").fingerprint
    deploy.revoke(site, "north")
    sentence = "north: is revoked; let it in again with a new key: hcfl deploy rotate SITE north"
    assert registered(site, superlink) == [
        ("south: was let in before", True),
        (f"north: its old key {old} is out", True),
        (sentence, True),
    ]
    assert [name for name, _ in superlink.members()] == ["south"]
    assert registered(site, superlink)[-1] == (sentence, True)
    deploy.rotate(site, "north")
    assert registered(site, superlink)[0] == ("north: is let in", True)
    assert superlink.members()[-1] == ("north", key_of(site, "north").fingerprint)


def test_a_public_key_that_was_left_on_the_server_stays_revoked(site):
    keys = site / "server" / "keys"
    left = (keys / "north.pub").read_bytes()
    deploy.revoke(site, "north")
    (keys / "north.pub").write_bytes(left)  # copying a folder over another deletes nothing
    superlink = SuperLink()
    assert [name for name, _ in superlink.members()] == []
    registered(site, superlink)
    assert [name for name, _ in superlink.members()] == ["south"]


def test_new_keys_for_a_whole_site_revoke_the_old_ones(site):
    superlink = SuperLink()
    registered(site, superlink)
    deploy.init(site, Site(("north", "west")), force=True)
    registered(site, superlink)
    assert superlink.members() == [(name, key_of(site, name).fingerprint) for name in ("north", "west")]


def test_a_site_of_the_first_version_is_understood(site):
    path = site / "server" / "keys" / "north.pub"
    path.write_text(" ".join(path.read_text().split()[:2]) + " north\n")
    assert key_of(site, "north").since == ""
    deploy.rotate(site, "north")
    assert [key.revoked for key in key_folder.read(path.parent) if key.name == "north"] == [True, False]


@pytest.mark.parametrize("content", [b"", b"no key", b"ssh-rsa AAAA x", b"\xff\xfe", b"ecdsa-sha2-nistp384 !!! x"])
def test_a_file_that_is_no_key_is_said(site, content):
    (site / "server" / "keys" / "north.pub").write_bytes(content)
    with pytest.raises(InputError, match=r"north\.pub'?: is not the public key of a node"):
        key_folder.read(site / "server" / "keys")


def test_a_file_with_a_name_that_could_do_harm_is_said(site):
    shutil.copy(site / "server" / "keys" / "north.pub", site / "server" / "keys" / "a b.pub")
    with pytest.raises(InputError, match="a name is made of letters, digits"):
        key_folder.read(site / "server" / "keys")


@pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="ssh-keygen is not installed")
def test_fingerprints_are_those_of_ssh(site):
    path = site / "server" / "keys" / "north.pub"
    said = subprocess.run(["ssh-keygen", "-lf", str(path)], capture_output=True, text=True, check=True).stdout
    assert said.split()[1] == key_of(site, "north").fingerprint


def test_the_command_lists_keys_and_no_secrets(site, capsys):
    assert main(["deploy", "rotate", str(site), "north"]) == 0
    assert main(["deploy", "revoke", str(site), "south"]) == 0
    said = capsys.readouterr()
    assert "server/keys" in said.out
    assert "register.sh" in said.out
    assert main(["deploy", "list", str(site)]) == 0
    listed = capsys.readouterr().out
    lines = [line.split() for line in listed.splitlines()]
    keys = key_folder.read(site / "server" / "keys")
    assert [line[:3] for line in lines] == [[key.name, key.fingerprint, key.since] for key in keys]
    assert [line[3] for line in lines] == ["revoked", "valid", "revoked"]
    assert keys[0].since.endswith("Z")
    assert "PRIVATE" not in said.out + said.err + listed


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["rotate", "west"], "client = 'west': is no client of this site, which has north, south"),
        (["revoke", "west"], "client = 'west': is no client of this site, which has north, south"),
        (["add", "--clients", "north"], "clients = 'north': is a client of this site, and one name has one key; "),
    ],
)
def test_what_is_wrong_is_one_sentence(site, capsys, arguments, words):
    step, *rest = arguments
    assert main(["deploy", step, str(site), *rest]) == 2
    said = capsys.readouterr().err
    assert words in said
    assert said.count("\n") == 1


def test_adding_a_client_that_is_there_names_the_command_for_a_new_key(site):
    before = (site / "server" / "keys" / "north.pub").read_bytes()
    with pytest.raises(InputError, match=f"a new key is made by hcfl deploy rotate {site} north$"):
        deploy.add(site, ["north"])
    assert (site / "server" / "keys" / "north.pub").read_bytes() == before


def test_what_was_revoked_is_not_revoked_again(site):
    deploy.revoke(site, "north")
    with pytest.raises(InputError, match="client = 'north': has no valid key; it was revoked"):
        deploy.revoke(site, "north")


@pytest.mark.parametrize("step", ["rotate", "revoke", "list"])
def test_another_folder_is_no_site(tmp_path, capsys, step):
    assert main(["deploy", step, str(tmp_path), *([] if step == "list" else ["a"])]) == 2
    assert "is not a site that `hcfl deploy init` wrote" in capsys.readouterr().err


def test_a_superlink_that_is_not_there_is_one_sentence(tmp_path):
    port = free_ports(1)[0]
    deploy.init(tmp_path / "site", Site(("north",), port=port))
    assert Processes(tmp_path).call(tmp_path / "site" / "server" / "register.sh") == (
        1,
        f"register.sh: the SuperLink does not answer at 127.0.0.1:{port}; start it with ./start.sh\n",
    )


def test_register_says_how_it_is_used(site, tmp_path):
    said = Processes(tmp_path).call(site / "server" / "register.sh", "--replace")
    assert said == (2, "register.sh: usage: ./register.sh [--replace NAME]\n")
