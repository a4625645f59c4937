"""Addresses that servers name: a wrong one raises ``WebError``."""

from __future__ import annotations

import re
import socket
from contextlib import suppress
from ipaddress import ip_address
from urllib.parse import SplitResult, urljoin, urlsplit

from builder.core.web_errors import WebError

GITHUB = re.compile(
    r"(?:https?|ssh|git)://(?:[^/@]*@)?github\.com/([A-Za-z0-9-]+)/([A-Za-z0-9._-]+?)(?:\.git)?/?"
)
"""The URL of a repository on GitHub: its owner and its name."""


def split_url(url: str) -> SplitResult:
    """The parts of a URL.  Raises ``WebError`` where it is no URL of http or https."""
    try:
        parts = urlsplit(url)
        usable = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable or any(character.isspace() or not character.isprintable() for character in url):
        raise WebError("the server names an address that is not valid", temporary=False)
    return parts


def join_url(base: str, reference: str) -> str:
    """Resolve a reference against the address of its response.  Raises ``WebError``."""
    try:
        url = urljoin(base, reference)
    except ValueError:
        url = ""
    split_url(url)
    return url


def origin(url: str) -> tuple[str, str, int]:
    """Scheme, host and port of a URL.  Raises ``WebError``."""
    parts = split_url(url)
    return (
        parts.scheme,
        parts.hostname or "",
        parts.port or (443 if parts.scheme == "https" else 80),
    )


def is_loopback(host: str) -> bool:
    """Whether a host is this machine by its name or address; other names are not resolved.

    The unspecified address connects to it, too (ip(7)).
    """
    try:
        found = ip_address(host.partition("%")[0])
    except ValueError:
        return host == "localhost"
    found = getattr(found, "ipv4_mapped", None) or found
    return found.is_loopback or found.is_unspecified


def leads_here(host: str) -> bool:
    """Whether any address of a host is this machine's: loopback's, its network's, or a bridge's.

    Whoever connects to an address of the own machine has the same one.  Nothing is sent.
    """
    with suppress(OSError, UnicodeError):
        for family, *_, address in socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM):
            with suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect(address)
                there = probe.getpeername()[0]
                if is_loopback(there) or there == probe.getsockname()[0]:
                    return True
    return False


def github_page(url: str, path: str = "") -> str:
    """The page of a GitHub repository, or ``path`` below it ("pull/6"); empty for other hosts."""
    found = GITHUB.fullmatch(url)
    if found is None:
        return ""
    return "/".join(["https://github.com", found[1], found[2], *([path] if path else [])])
