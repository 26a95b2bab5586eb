"""The server on a real port: a stranger without the token gets nothing, and only what is in the folders is served."""

import http.client
import os
import socket
from urllib.parse import urlsplit

import pytest
from watched import served

from hcfl.errors import InputError
from hcfl.watch.access import Access, new_token
from hcfl.watch.serve import is_local, serve

TOKEN = "a-token-of-at-least-twenty-letters"
SECRET = "only-for-those-who-may-see-it"


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A folder with a run in it whose name is a secret, links out of it, and a device."""
    folder = tmp_path_factory.mktemp("watched")
    (folder / "passwords.txt").write_text(SECRET)
    run = folder / "runs" / SECRET
    run.mkdir(parents=True)
    (run / "config.yaml").write_text("method: {name: fedavg}\ndata: {source: digits}\ntraining: {rounds: 3}\n")
    (run / "metrics.jsonl").write_text("")
    (run / "clients.csv").symlink_to(folder / "passwords.txt")
    (run / "summary.json").symlink_to("/dev/zero")
    os.mkfifo(run / "events.jsonl")
    (folder / "runs" / "out").symlink_to(folder)
    return folder / "runs"


def ask(address, target, method="GET", headers=(), host=None):
    """Send one request, its target as it is; return the status, the headers and the beginning of the body."""
    place = urlsplit(address)
    connection = http.client.HTTPConnection(place.hostname, place.port, timeout=5)
    connection.putrequest(method, target, skip_host=True, skip_accept_encoding=True)
    connection.putheader("Host", host or place.netloc)
    for name, value in headers:
        connection.putheader(name, value)
    connection.endheaders()
    answer = connection.getresponse()
    body = b"" if answer.headers.get_content_type() == "text/event-stream" else answer.read(100_000)
    if answer.headers.get_content_type() == "text/event-stream":
        body = answer.readline() + answer.readline()
    connection.close()
    return answer.status, answer.headers, body.decode(errors="replace")


def raw(address, request):
    """Send bytes that are no proper request; return what comes back."""
    place = urlsplit(address)
    with socket.create_connection((place.hostname, place.port), timeout=5) as connection:
        connection.sendall(request)
        connection.shutdown(socket.SHUT_WR)
        return connection.recv(65536)


def test_twenty_tries_of_a_stranger_get_nothing(runs):
    wrong = TOKEN[:-1] + "X"
    with served([runs], TOKEN) as address:
        port = urlsplit(address).port
        cookie = f"hcfl-watch-{port}"
        tries = [
            ("/", ()),
            ("/events", ()),
            (f"/events?run=runs/{SECRET}", ()),
            (f"/run/runs/{SECRET}", ()),
            (f"/report/runs/{SECRET}", ()),
            ("/compare?run=a&run=b", ()),
            ("/watch.js", ()),
            ("/watch.css", ()),
            ("/favicon.ico", ()),
            ("/nothing", ()),
            ("/?token=", ()),
            (f"/?token={wrong}", ()),
            (f"/?token={TOKEN.upper()}", ()),
            (f"/?token={TOKEN}%00", ()),
            ("/?token[]=" + TOKEN, ()),
            ("/", [("Authorization", f"Bearer {wrong}")]),
            ("/", [("Cookie", f"{cookie}=")]),
            ("/", [("Cookie", f"{cookie}={TOKEN}")]),  # the token is not the cookie
            ("/", [("Cookie", f"{cookie}={Access.of(wrong).cookie()}")]),
            ("/", [("Cookie", f"hcfl-watch-{port + 1}={Access.of(TOKEN).cookie()}")]),
            ("//evil.example/../", [("X-Forwarded-For", "127.0.0.1"), ("X-Original-URL", f"/?token={TOKEN}")]),
        ]
        assert len(tries) >= 20
        answers = {(target, tuple(headers)): ask(address, target, headers=headers) for target, headers in tries}
        assert {status for status, _, _ in answers.values()} == {401}
        assert {body for _, _, body in answers.values()} == {
            "Open the address with the token, which was printed at the start.\n"
        }
        assert not any("set-cookie" in headers for _, headers, _ in answers.values())
        for request in (
            b"GET / HTTP/1.0\r\n\r\n",
            b"\x16\x03\x01\x02\x00",
            b"GET /events HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
        ):
            assert SECRET.encode() not in raw(address, request)


def test_the_token_becomes_a_cookie_and_leaves_the_address(runs):
    with served([runs], TOKEN) as address:
        status, headers, _ = ask(address, f"/run/runs/x?token={TOKEN}&a=b")
        assert (status, headers["location"]) == (303, "/run/runs/x?a=b")
        cookie = headers["set-cookie"]
        assert TOKEN not in cookie
        assert {"httponly", "samesite=strict", "path=/"} <= {part.strip().lower() for part in cookie.split(";")}
        mine = [("Cookie", cookie.partition(";")[0])]
        assert ask(address, "/", headers=mine)[0] == 200
        assert SECRET in ask(address, "/events", headers=mine)[2]
        assert ask(address, f"//evil.example?token={TOKEN}")[1]["location"] == "/evil.example"
        assert ask(address, f"/%5C%5Cevil.example?token={TOKEN}")[1]["location"] == "/%5C%5Cevil.example"


@pytest.mark.parametrize(
    "id_",
    [
        "../passwords.txt",
        "..%2f..%2fpasswords.txt",
        "runs/../../passwords.txt",
        "runs/out/passwords.txt",
        "runs/out",
        "/etc/passwd",
        "%2fetc%2fpasswd",
        f"runs/{SECRET}/clients.csv",
        f"runs/{SECRET}/..",
        "dev/zero",
        "%00",
    ],
)
def test_nothing_outside_of_the_folders_is_served(runs, id_):
    with served([runs]) as address:
        for target in (f"/report/{id_}", f"/{id_}"):
            status, _, body = ask(address, target)
            assert status == 404
            assert SECRET not in body
        assert ask(address, f"/events?run={id_}")[2].startswith("event: gone")


def test_links_and_devices_in_a_run_are_left_out(runs):
    with served([runs]) as address:
        told = ask(address, f"/events?run=runs/{SECRET}")[2]
        assert told.startswith("event: run")
        assert told.count(SECRET) == told.count(f"runs/{SECRET}") + told.count(f'"folder":"{SECRET}"')


def test_it_is_read_only_and_every_answer_has_the_headers(runs):
    with served([runs]) as address:
        for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"):
            assert ask(address, "/", method)[0] == 405
        for target in ("/", "/watch.js", "/nothing", "/events"):
            _, headers, _ = ask(address, target)
            assert headers["content-security-policy"].startswith("default-src 'none'; script-src 'self'")
            assert headers["x-content-type-options"] == "nosniff"
            assert headers["cross-origin-resource-policy"] == "same-origin"
            assert "access-control-allow-origin" not in headers
            assert "server" not in headers or "uvicorn" in headers["server"]


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:1", 200),
        ("localhost", 200),
        ("LOCALHOST.:80", 200),
        ("[::1]:80", 200),
        ("10.0.0.7:8642", 200),
        ("fl.example.org", 200),
        ("evil.example", 421),
        ("127.0.0.1.evil.example", 421),
        ("localhost.evil.example:80", 421),
        ("evil.example:80@localhost", 421),
        ("localhost:80:80", 421),
        ("2130706433", 421),
    ],
)
def test_a_name_that_a_stranger_points_here_is_refused(runs, host, status):
    with served([runs], names=["fl.example.org"]) as address:
        assert ask(address, "/events", host=host)[0] == status


def test_other_web_pages_cannot_read_it(runs):
    with served([runs]) as address:
        for site, mode, status in (
            ("cross-site", "no-cors", 403),
            ("same-site", "cors", 403),
            ("cross-site", "navigate", 200),
        ):
            headers = [("Sec-Fetch-Site", site), ("Sec-Fetch-Mode", mode)]
            assert ask(address, "/watch.js", headers=headers)[0] == status


def test_other_machines_need_a_token_and_it_must_be_long(tmp_path):
    assert [is_local(host) for host in ("127.0.0.1", "::1", "localhost", "0.0.0.0", "fl.example.org")] == [True] * 3 + [
        False
    ] * 2
    assert len({new_token() for _ in range(9)}) == 9
    with pytest.raises(InputError, match="at least 20"):
        Access.of("short")
    file = tmp_path / "token"
    file.write_text(TOKEN)
    file.chmod(0o644)
    with pytest.raises(InputError, match="other users can read it"):
        serve([tmp_path], "127.0.0.1", 0, None, token_file=file)
    with pytest.raises(InputError, match="is not a folder"):
        serve([tmp_path / "missing"], "127.0.0.1", 0, None)
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(InputError, match="cannot be served"):
        serve([tmp_path], "127.0.0.1", taken.getsockname()[1], None)
