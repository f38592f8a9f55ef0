"""The explorer's server. By default it listens on loopback; on any other address it requires a token."""

from __future__ import annotations

import hmac
import ipaddress
import logging
import secrets
import socket
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

from bokeh.server.auth_provider import AuthProvider
from tornado.web import RequestHandler

from cstformer.errors import CSTError
from cstformer.explorer.guards import guard_bokeh

PORT = 5006
COOKIE = "cstformer_token"
MAX_MESSAGE = 16 * 2**20
"""Bytes of one websocket message; uploads arrive in smaller chunks."""

_ASK = """<!DOCTYPE html><html lang="en"><meta charset="utf-8"><title>cstformer explorer</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>body{font:1rem/1.5 system-ui,sans-serif;max-width:26rem;margin:20vh auto;padding:0 1rem}
input,button{font:inherit;padding:.4rem .6rem}</style>
<h1>cstformer explorer</h1><p>This explorer needs the token that <code>cst explore</code> printed when it started.</p>
<form action="./"><label>Token <input name="token" type="password" autofocus required></label>
<button>Open</button></form></html>"""


class TokenPage(RequestHandler):
    """The form that asks for the token."""

    def get(self) -> None:
        """Show the form."""
        self.set_status(403)
        self.finish(_ASK)


class TokenGate(AuthProvider):
    """Admits requests with the token: first in the address, then in a cookie."""

    def __init__(self, token: str) -> None:
        self._token = token.encode()
        super().__init__()

    @property
    def get_user(self) -> Callable[[Any], Any]:
        """Check a request."""
        return self._user

    def _user(self, handler: RequestHandler) -> str | None:
        shown = handler.get_query_argument("token", None)
        if shown is not None and hmac.compare_digest(shown.encode(), self._token):
            if "Upgrade" not in handler.request.headers:
                handler.set_cookie(COOKIE, quote(shown), httponly=True, samesite="Strict")
            return "visitor"
        kept = handler.get_cookie(COOKIE)
        return "visitor" if kept and hmac.compare_digest(kept.encode(), quote(self._token).encode()) else None

    @property
    def login_url(self) -> str:
        """Redirect requests without the token to this page."""
        return "/token"

    @property
    def login_handler(self) -> type[RequestHandler]:
        """The form."""
        return TokenPage


def is_loopback(address: str) -> bool:
    """Whether an address is reachable from this computer only.

    >>> is_loopback("127.0.0.1"), is_loopback("::1"), is_loopback("localhost"), is_loopback("0.0.0.0")
    (True, True, True, False)
    """
    if address == "localhost":
        return True
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


def make_server(
    app: Callable[[], Any],
    address: str = "127.0.0.1",
    port: int | None = None,
    token: str | None = None,
    origins: tuple[str, ...] = (),
) -> tuple[Any, str]:
    """Make a server that is not started yet; return it and the URL to open.

    Parameters
    ----------
    app : function that builds the page of one visitor
    address : address to listen on; if it is not loopback and no token is given, one is generated
    port : by default 5006, so that links to views stay valid, or a free one if that is taken
    token : what visitors must present
    origins : further HOST:PORT whose pages may connect to the server, e.g. of a proxy
    """
    from panel.io.server import get_server

    if token is not None and len(token) < 16:
        raise CSTError("--token must have at least 16 characters; omit it to have one generated")
    if token is None and not is_loopback(address):
        token = secrets.token_urlsafe(24)
    gate: dict[str, Any] = {} if token is None else {"auth_provider": TokenGate(token)}
    guard_bokeh()
    logging.getLogger("bokeh").setLevel(logging.WARNING)
    logging.getLogger("tornado.access").setLevel(logging.ERROR)
    number = PORT if port is None and _refusal(address, PORT) is None else port or 0
    if reason := _refusal(address, number):
        raise CSTError(f"cannot listen on {address}, port {number}: {reason}; choose another --address or --port")
    server = get_server(
        {"/": app},
        address=address,
        port=number,
        title="cstformer explorer",
        websocket_max_message_size=MAX_MESSAGE,
        **gate,
    )
    names = {"127.0.0.1", "localhost", "[::1]"} if is_loopback(address) else {_host(address), address}
    allowed = server._tornado.websocket_origins
    allowed.clear()
    allowed.update({f"{name}:{server.port}" for name in names} | set(origins))
    url = f"http://{_host(address)}:{server.port}/"
    return server, url if token is None else f"{url}?token={quote(token)}"


def _refusal(address: str, port: int) -> str | None:
    """Reason why the server cannot listen there; None if it can."""
    if not 0 <= port < 2**16:
        return "a port is a number from 0 to 65535"
    try:
        with socket.create_server((address, port), family=socket.AF_INET6 if ":" in address else socket.AF_INET):
            return None
    except OSError as error:
        return error.strerror or str(error)


def _host(address: str) -> str:
    """Host part of the URL; the address of all interfaces becomes the name of this computer."""
    if address in ("0.0.0.0", "::"):
        return socket.gethostname()
    return f"[{address}]" if ":" in address else address
