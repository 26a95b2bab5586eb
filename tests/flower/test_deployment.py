"""A real deployment on this machine: TLS, node keys, separate processes. Who belongs is let in, nobody else."""

import json
import shutil
import ssl
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from processes import Processes, descendants, free_ports, kill, processes_named, wait_for
from same import same_run
from sklearn.datasets import load_digits

from hcfl.config import from_flat
from hcfl.flower import deploy, keys
from hcfl.launch import execute
from hcfl.runs import folder as run_folder
from hcfl.runs.prepare import prepare

pytestmark = pytest.mark.slow

CLIENTS = ("north", "south", "west")
NGINX = shutil.which("nginx") or shutil.which("/usr/sbin/nginx")


@dataclass(frozen=True)
class Running:
    """A site whose server is up and whose nodes are registered."""

    folder: Path
    programs: Processes
    site: deploy.Site
    spare_port: int

    @property
    def node_address(self) -> str:
        """Where nodes go: through the front where there is one."""
        return f"127.0.0.1:{self.site.front_port if NGINX else self.site.port}"

    def node(self, *flags: object) -> str:
        """Try to join with a node of one's own; return what it said when it gave up."""
        given = ["--superlink", self.node_address, "--host", "127.0.0.1", "--port", self.spare_port, *flags]
        code, said = self.programs.call("flower-supernode", *given, "--max-retries", "1")
        assert code != 0
        return said

    def post(self, path: str) -> int:
        """Return the front's answer to a request."""
        trust = ssl.create_default_context(cafile=self.folder / "server" / "ca.crt")
        request = urllib.request.Request(f"https://127.0.0.1:{self.site.front_port}{path}", method="POST", data=b"")
        try:
            return urllib.request.urlopen(request, context=trust, timeout=10).status
        except urllib.error.HTTPError as error:
            return error.code


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    folder = tmp_path_factory.mktemp("deployment")
    ports = free_ports(6)
    site = deploy.Site(CLIENTS, "127.0.0.1", *ports[:3])
    deploy.init(folder / "site", site)
    programs = Processes(folder)
    server = folder / "site" / "server"
    if not NGINX:  # nodes then go to the SuperLink itself
        for name in CLIENTS:
            script = folder / "site" / "clients" / name / "start.sh"
            script.write_text(script.read_text().replace(str(site.front_port), str(site.port)))
    try:
        for program in ("superlink", "superexec", *(["front"] if NGINX else [])):
            programs.start(program, server / "supervise.sh", server / f"{program}.sh")
        wait_for("the SuperLink", lambda: "Application startup complete" in programs.log("superlink"), 90)
        code, said = programs.call(server / "register.sh")
        assert (code, said) == (0, "".join(f"{name}: is let in\n" for name in CLIENTS))
        yield Running(folder / "site", programs, site, ports[5])
    finally:
        programs.stop()


def flwr(running: Running, *arguments: object, home: Path | None = None) -> tuple[int, str]:
    """Run the `flwr` command as the site's scripts do, or with a home of its own."""
    server = running.folder / "server"
    set_home = f'FLWR_HOME="{home}"' if home else ":"
    return running.programs.call(
        "sh", "-c", f'cd {server} && . ./environment && {set_home} && flwr "$@"', "-", *arguments
    )


def test_a_run_survives_the_death_of_a_node_and_of_its_server(running, tmp_path):
    """HCFL+ splits clients who disagree, on their own data, and ends as if nothing had happened."""
    pooled = own_files(tmp_path)
    for name in CLIENTS:
        running.programs.start(name, running.folder / "clients" / name / "start.sh", "--data", tmp_path / f"{name}.npz")
    server, out = running.folder / "server", tmp_path / "run"
    everybody = "quorum=1.0 timeout=200.0 wait=300.0"
    told = f"rounds=4 settings='rho=0.1 batch=16 epochs=2 model=mlp' out='{out}'"
    running.programs.start("run", server / "run.sh", "--run-config", f"{everybody} {told}")
    wait_for("round 1", lambda: len(run_folder.rows(out, "metrics.jsonl")) >= 1, 240)

    # A node dies, and the server with it, in the middle of a round. The node comes back by itself when the SuperLink
    # has noticed, after a minute; the run goes on when it is asked to, and waits for the node.
    kill(descendants(running.programs.running["south"].pid))
    kill(processes_named("flwr-serverapp", running.programs.running["superexec"].pid))
    running.programs.start("resumed", server / "resume.sh", out, "--run-config", everybody)
    wait_for("the end", (out / "summary.json").exists, 400)

    same = {"rho": 0.1, "batch": 16, "epochs": 2, "model": "mlp"}
    config = from_flat(method="hcfl+(fedrc)", data=str(pooled), engine="sequential", rounds=4, **same)
    execute(prepare(config), tmp_path / "undisturbed")
    same_run(out, tmp_path / "undisturbed")
    events = run_folder.rows(out, "events.jsonl")
    assert [row["event"] for row in events if row["event"] not in ("joined", "left")] == ["split"]
    assert {row["event"] for row in events} >= {"joined"}, "the log says who came"
    assert [row["participants"] for row in run_folder.rows(out, "metrics.jsonl")] == [3, 3, 3, 3]


def own_files(folder: Path) -> Path:
    """Write a file for each client, one of whom labels otherwise than the others; return all of them as one file."""
    digits = load_digits()
    chosen = np.random.default_rng(0).permutation(len(digits.target))[:450]
    x, y, client = digits.images[chosen].astype(np.uint8), digits.target[chosen], np.arange(450) % 3
    y[client == 2] = (y[client == 2] + 1) % 10
    for number, name in enumerate(CLIENTS):
        np.savez(folder / f"{name}.npz", x=x[client == number], y=y[client == number])
    np.savez(folder / "all.npz", x=x, y=y, client=np.array(CLIENTS)[client])
    return folder / "all.npz"


def test_registering_again_does_no_harm(running):
    code, said = running.programs.call(running.folder / "server" / "register.sh")
    assert (code, said) == (0, "".join(f"{name}: was let in before\n" for name in CLIENTS))


def test_a_node_without_a_key_is_kept_out(running):
    said = running.node("--root-certificates", running.folder / "server" / "ca.crt")
    assert "All SuperNodes must be registered" in said


def test_a_node_with_a_wrong_key_is_kept_out(running, tmp_path):
    (tmp_path / "wrong.key").write_bytes(keys.node_key_file(keys.new_key()))
    certificate = running.folder / "server" / "ca.crt"
    said = running.node("--root-certificates", certificate, "--auth-supernode-private-key", tmp_path / "wrong.key")
    assert "Failed to activate SuperNode" in said


def test_a_server_that_no_trusted_authority_vouches_for_is_left_alone(running, tmp_path):
    (tmp_path / "other.crt").write_bytes(keys.certificate_file(keys.authority(keys.new_key(), 1)))
    key = running.folder / "clients" / "north" / "node.key"
    said = running.node("--root-certificates", tmp_path / "other.crt", "--auth-supernode-private-key", key)
    assert "CERTIFICATE_VERIFY_FAILED" in said


def test_a_node_without_tls_is_kept_out(running):
    assert "could not establish a connection" in running.node("--insecure")


needs_nginx = pytest.mark.skipif(NGINX is None, reason="nginx is not installed: the front was not tested")


@needs_nginx
def test_a_run_submitted_through_the_front_is_refused(running, tmp_path):
    home = tmp_path / "home"
    home.mkdir()
    (home / "config.toml").write_text(
        f'[superlink.front]\naddress = "127.0.0.1:{running.site.front_port}"\n'
        f'root-certificates = "{running.folder / "server" / "ca.crt"}"\n'
    )
    app, key = running.folder / "server" / "app", running.folder / "server" / "keys" / "north.pub"
    for command in (["run", app, "front"], ["supernode", "register", key, "front"]):
        code, said = flwr(running, *command, home=home)
        assert code != 0
        assert "403 Forbidden" in said


@needs_nginx
@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/health",
        "/v1/control/start-run",
        "//v1/control/start-run",
        "/v1/fleet/../control/start-run",
        "/v1/fleet/%2e%2e/control/start-run",
        "/v1/fleet/..%2fcontrol/start-run",
        "/v1/fleet/.././control/start-run",
        "/v1/runtime/pull-messages",
        "/v1/fleet",
    ],
)
def test_the_front_lets_through_the_fleets_path_only(running, path):
    assert running.post(path) == 403


@needs_nginx
def test_the_fleets_path_is_let_through(running):
    assert running.post("/v1/fleet/pull-messages") == 415  # the SuperLink's own answer to an empty request


def fingerprints(running: Running, name: str) -> dict[bool, str]:
    """Return the newest valid and the newest revoked key of a client."""
    return {key.revoked: key.fingerprint for key in deploy.listed(running.folder) if key.name == name}


@needs_nginx
def test_a_key_that_was_replaced_or_revoked_is_kept_out(running, tmp_path):
    """The old key works until the new one is registered; a key that was put out never comes back."""
    register, home = running.folder / "server" / "register.sh", running.folder / "clients" / "east"
    flags = ["--root-certificates", running.folder / "server" / "ca.crt", "--auth-supernode-private-key"]
    deploy.add(running.folder, ["east"])
    assert "east: is let in\n" in running.programs.call(register)[1]
    shutil.copy(home / "node.key", tmp_path / "old.key")

    deploy.rotate(running.folder, "east")
    said = running.programs.call(register)
    assert said[0] == 0
    assert "east: is let in\n" in said[1]
    assert f"east: its old key {fingerprints(running, 'east')[True]} is out\n" in said[1]
    assert "Failed to activate SuperNode" in running.node(*flags, tmp_path / "old.key")
    running.programs.start("east", home / "start.sh", "--data", __file__)
    wait_for("the node with the new key", lambda: "SuperNode ID" in running.programs.log("east"), 60)

    deploy.revoke(running.folder, "east")
    said = running.programs.call(register)
    assert f"east: its old key {fingerprints(running, 'east')[True]} is out\n" in said[1]
    assert "east: is revoked; let it in again with a new key: hcfl deploy rotate SITE east\n" in said[1]
    wait_for("the end of the node", lambda: "Failed to activate SuperNode" in running.programs.log("east"), 90)


def test_a_key_that_was_unregistered_by_hand_is_said_to_be_revoked(running):
    deploy.add(running.folder, ["hand"])
    register, key = running.folder / "server" / "register.sh", running.folder / "server" / "keys" / "hand.pub"
    code, said = flwr(running, "supernode", "register", key, "site", "--name", "hand", "--format", "json")
    assert code == 0
    flwr(running, "supernode", "unregister", json.loads(said)["node-id"], "site")
    code, said = running.programs.call(register)
    assert f"hand: its key {fingerprints(running, 'hand')[False]} is revoked; let it in again" in said


def test_a_second_key_under_a_name_is_refused(running, tmp_path):
    deploy.add(running.folder, ["twice"])
    register, path = running.folder / "server" / "register.sh", running.folder / "server" / "keys" / "twice.pub"
    running.programs.call(register)
    deploy.init(tmp_path / "other", deploy.Site(("twice",)))
    shutil.copy(tmp_path / "other" / "server" / "keys" / "twice.pub", path)
    code, said = running.programs.call(register)
    assert code == 1
    assert "is let in under this name, and one name has one key; a new key is made by hcfl deploy rotate" in said


@needs_nginx
@pytest.mark.skipif(not Path("/proc/net/if_inet6").exists(), reason="this machine has no IPv6")
def test_a_node_joins_over_ipv6(tmp_path):
    ports = free_ports(3)
    deploy.init(tmp_path / "site", deploy.Site(("north",), "::1", *ports))
    server, programs = tmp_path / "site" / "server", Processes(tmp_path)
    try:
        for program in ("superlink", "front"):
            programs.start(program, server / f"{program}.sh")
        wait_for("the SuperLink", lambda: "Application startup complete" in programs.log("superlink"), 90)
        assert programs.call(server / "register.sh") == (0, "north: is let in\n")
        programs.start("node", tmp_path / "site" / "clients" / "north" / "start.sh", "--data", __file__)
        wait_for("the node", lambda: "SuperNode ID" in programs.log("node"), 60)
    finally:
        programs.stop()
