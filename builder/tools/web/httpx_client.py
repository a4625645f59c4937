"""A client of httpx2 whose requests ``Client`` sends, for libraries that ask with httpx2.

So its bounds and its rules of redirects, proxies and logins hold for them, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import httpx2

from builder.tools.web.client import READ_TIMEOUT, Client, Follow, Opened
from builder.tools.web.downloads import PATIENT
from builder.tools.web.errors import WebError

LARGEST = 64 << 20  # bytes of a response that is read whole, such as a list of files
WHOLE = "builder.whole"
OWN = {"host", "connection", "content-length", "transfer-encoding", "accept-encoding"}
"""Headers that ``Client`` sends itself."""


class HttpxClient(httpx2.Client):
    """Its requests raise ``WebError`` where there is no response, or one with an error's status.

    A streamed response raises ``httpx2.RemoteProtocolError`` where it is cut: libraries continue
    there.  It is not decoded.  ``more`` is as for ``httpx2.Client``.
    """

    def __init__(self, **more: Any) -> None:
        super().__init__(transport=_Transport(), trust_env=False, **more)

    def send(
        self, request: httpx2.Request, *, stream: bool = False, **more: Any
    ) -> httpx2.Response:
        """As httpx2's own."""
        request.extensions = {**request.extensions, WHOLE: not stream}
        return super().send(request, stream=stream, **more)


class _Transport(httpx2.BaseTransport):
    def __init__(self) -> None:
        self._client = Client()

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        whole = request.extensions[WHOLE]
        with ExitStack() as stack:
            opened = stack.enter_context(
                self._client.open(
                    request.method,
                    str(request.url),
                    headers={k: v for k, v in request.headers.items() if k not in OWN},
                    data=request.read() or None,
                    read_timeout=request.extensions["timeout"]["read"] or READ_TIMEOUT,
                    least=0 if whole else PATIENT["least"],
                    follow=Follow.ANYWHERE,
                )
            )
            if opened.status >= 300:
                raise opened.error()
            headers = [
                (name.encode("latin-1"), value.encode("latin-1"))
                for name, value in opened.headers.items()
                if name.lower() != "content-encoding"
            ]
            if whole:
                content = opened.read(LARGEST)
                return httpx2.Response(opened.status, headers=headers, content=content)
            body = _Body(opened, stack.pop_all())
            return httpx2.Response(opened.status, headers=headers, stream=body)


class _Body(httpx2.SyncByteStream):
    def __init__(self, opened: Opened, stack: ExitStack) -> None:
        self._opened = opened
        self._stack = stack

    def __iter__(self) -> Iterator[bytes]:
        try:
            yield from self._opened.blocks()
        except WebError as error:
            if error.temporary:
                raise httpx2.RemoteProtocolError(error.why) from error
            raise

    def close(self) -> None:
        self._stack.close()
