"""Who may see the page: the host that a request names, the token, and the headers that every answer carries."""

import hmac
import secrets
import socket
from collections.abc import Iterable
from dataclasses import dataclass, field
from ipaddress import ip_address
from urllib.parse import parse_qsl, quote, urlencode

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import cookie_parser
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hcfl.errors import InputError

SHORTEST_TOKEN = 20
"""Letters that a token of the user's own must have."""

COOKIE_AGE = 30 * 24 * 3600

POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self' 'unsafe-inline'",  # figures set colours as style attributes
        "img-src data:",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
"""The content security policy of the report, and requests to this server only."""

HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}


def new_token() -> str:
    """Return a token that cannot be guessed."""
    return secrets.token_urlsafe(32)


@dataclass(frozen=True)
class Access:
    """The token that a visitor needs, if any, and the names that this machine may be called by."""

    token: str | None = field(default=None, repr=False)
    names: frozenset[str] = frozenset()

    @staticmethod
    def of(token: str | None, names: Iterable[str] = ()) -> "Access":
        """Return the access with these names and the machine's own."""
        if token is not None and (len(token) < SHORTEST_TOKEN or not token.isascii() or not token.isprintable()):
            raise InputError(f"token: must have at least {SHORTEST_TOKEN} letters, digits and signs")
        own = {"localhost", socket.gethostname()}
        return Access(token, frozenset(name.lower().rstrip(".") for name in {*names, *own}))

    def knows_host(self, host: str) -> bool:
        """Whether a request's Host is an address or a known name.

        A web page of a stranger can let its own name point to this machine, and would then read what is served here.

        >>> access = Access(names=frozenset({"localhost"}))
        >>> access.knows_host("127.0.0.1:8642"), access.knows_host("localhost"), access.knows_host("evil.example")
        (True, True, False)
        """
        name, _, port = host.rpartition(":") if not host.endswith("]") else (host, "", "0")
        if not name:
            name, port = host, "0"
        if not (port.isascii() and port.isdigit()):
            return False
        if name.lower().rstrip(".") in self.names:
            return True
        try:
            ip_address(name[1:-1] if name.startswith("[") and name.endswith("]") else name)
        except ValueError:
            return False
        return True

    def cookie(self) -> str:
        """Return the value of the cookie: it proves the token and does not contain it."""
        return hmac.new((self.token or "").encode(), b"hcfl watch", "sha256").hexdigest()

    def is_token(self, given: str) -> bool:
        """Whether this is the token, in the same time for any wrong one."""
        return self.token is not None and secrets.compare_digest(given.encode(), self.token.encode())

    def is_cookie(self, given: str) -> bool:
        """Whether this is the value of the cookie."""
        return secrets.compare_digest(given.encode(), self.cookie().encode())


class Guard:
    """Lets requests through that are allowed to read, and answers the others itself."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self.app, self.access = app, access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
            await send(message)

        await (self._answer(scope) or self.app)(scope, receive, guarded)

    def _answer(self, scope: Scope) -> Response | None:
        """Return the answer to a request that is not let through; None for one that is."""
        headers = Headers(scope=scope)
        hosts = headers.getlist("host")
        if len(hosts) != 1 or not self.access.knows_host(hosts[0]):
            return PlainTextResponse("This address is not one of this machine's own.\n", 421)
        if scope["method"] not in ("GET", "HEAD"):
            return PlainTextResponse("This page can only be read.\n", 405)
        elsewhere = headers.get("sec-fetch-site", "none") not in ("none", "same-origin")
        if elsewhere and headers.get("sec-fetch-mode") != "navigate":
            return PlainTextResponse("Only this page itself may ask.\n", 403)
        if self.access.token is None:
            return None
        name = f"hcfl-watch-{(scope.get('server') or ('', 0))[1]}"
        cookies = cookie_parser("; ".join(headers.getlist("cookie")))
        if self.access.is_cookie(cookies.get(name, "")):
            return None
        query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        if any(self.access.is_token(value) for key, value in query if key == "token"):
            return self._welcome(scope, name, [pair for pair in query if pair[0] != "token"])
        return PlainTextResponse("Open the address with the token, which was printed at the start.\n", 401)

    def _welcome(self, scope: Scope, name: str, query: list[tuple[str, str]]) -> Response:
        """Set the cookie, and go to the same page without the token, so that it is not kept among the addresses."""
        path = "/" + quote(scope["path"], safe="/").lstrip("/")
        answer = RedirectResponse(f"{path}?{urlencode(query)}" if query else path, 303)
        secure = scope.get("scheme") == "https"
        answer.set_cookie(
            name, self.access.cookie(), max_age=COOKIE_AGE, httponly=True, samesite="strict", secure=secure, path="/"
        )
        return answer
