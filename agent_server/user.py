"""For whom a run works, and what of that is passed on to whom: nothing, unless a policy of the target names it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextvars import ContextVar

import msgspec

NEVER_FORWARDED = frozenset(
    {
        "authorization", "connection", "content-encoding", "content-length", "content-type", "cookie", "cookie2",
        "expect", "forwarded", "host", "keep-alive", "origin", "proxy-authenticate", "proxy-authorization",
        "proxy-connection", "referer", "set-cookie", "te", "trailer", "transfer-encoding", "upgrade", "via",
        "x-api-key", "api-key", "x-goog-api-key", "last-event-id", "mcp-session-id", "mcp-protocol-version",
    }
)  # fmt: skip
"""Headers that no policy can name: our own keys, cookies, and what belongs to one connection."""
VALUE_LENGTH = 4096


class User(msgspec.Struct, frozen=True, kw_only=True):
    """Who asked for a run. name: of the key, the subject of the token, or what an application that is trusted to do so
    says; "" where everyone may ask. claims: of the token, which was verified. sent: the request's headers, as they
    came.
    """

    tenant: str = ""
    name: str = ""
    claims: Mapping[str, object] = {}
    sent: Sequence[tuple[bytes, bytes]] = ()

    @property
    def headers(self) -> dict[str, str]:
        """The request's headers by their names in lower case, without those that are never passed on."""
        decoded = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in self.sent}
        return {name: value for name, value in decoded.items() if not _is_private(name) and _is_header_value(value)}


NOBODY = User()
current_user: ContextVar[User] = ContextVar("current_user", default=NOBODY)
"""Who asks, in the task of a request and those that it starts."""


class Forward(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """What of a request is passed on to one target.

    headers: names of the request's headers. claims: of the user's token, each with the header that carries it. user:
    the header that carries the user's name; "" for none. Raises ValueError for a header that is never passed on.
    """

    headers: tuple[str, ...] = ()
    claims: Mapping[str, str] = {}
    user: str = ""

    def __post_init__(self) -> None:
        for name in (*self.headers, *self.claims.values(), *filter(None, (self.user,))):
            if _is_private(name.lower()):
                raise ValueError(
                    f"the header {name!r} is never forwarded: it may hold a key, a cookie or a connection's state"
                )

    def headers_for(self, user: User) -> dict[str, str]:
        """The headers that the target is sent. Values that are not text or number, or cannot be a header, are left
        out."""
        sent = user.headers if self.headers else {}
        values: dict[str, object] = {name.lower(): sent.get(name.lower()) for name in self.headers}
        values |= {header.lower(): user.claims.get(claim) for claim, header in self.claims.items()}
        if self.user:
            values[self.user.lower()] = user.name or None
        texts = {name: str(value) for name, value in values.items() if isinstance(value, str | int | float)}
        return {name: text for name, text in texts.items() if _is_header_value(text)}

    def narrowed(self, user: User) -> User:
        """The user with the claims and headers that the policy names, and no others."""
        names = {name.lower() for name in self.headers}
        return msgspec.structs.replace(
            user,
            claims={name: user.claims[name] for name in self.claims if name in user.claims},
            sent=[each for each in user.sent if each[0].decode("latin-1").lower() in names],
        )


NOTHING = Forward()


def forward_of(policy: object) -> Forward:
    """A policy as settings and files write it: {"headers": [...], "claims": {claim: header}, "user": header}. Raises
    ValueError."""
    return msgspec.convert(policy, Forward)


def _is_private(header: str) -> bool:
    return header in NEVER_FORWARDED or header.startswith(("sec-", "proxy-"))


def _is_header_value(text: str) -> bool:
    return len(text) <= VALUE_LENGTH and text.isascii() and text.isprintable()
