"""uvicorn's protocol with what it leaves out: where in a request it is, and what a request may look like."""

from __future__ import annotations

from collections.abc import Callable

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MOST_HEAD_BYTES = 65_536
"""Of a request, before its body; the parser has no limit of its own."""

FRAMING = 16
"""So many bytes may come for each of a body, beside those of a head: a chunk of one byte takes six."""

FRAMES = frozenset({b"content-length", b"transfer-encoding"})
"""Headers that say that a body follows, and where it ends."""

HEAD_END = b"\r\n\r\n"

NO_REQUEST = "what was sent is no HTTP/1.1 request"
NO_HOST = "a request of HTTP/1.1 has one Host header; this one has {count}"
CODED = "transfer-encoding is {value!r}; expected chunked"
FRAMED = "what is sent beside the body, as chunks and trailers, is larger than it may be"


class Http(HttpToolsProtocol):
    """Can be asked whether it is in the middle of a head or of a body, and whether it waits for a next request."""

    in_head = in_body = False
    fault = NO_REQUEST
    head_bytes = body_bytes = 0
    _beside_bytes = _bodies_bytes = 0
    _head_ends = b""
    _head_again = False
    _requests = 0
    idle: Callable[[], None]
    """Called once a request is answered and no other one is here."""

    def data_received(self, data: bytes) -> None:
        """Parse it; a request that asks for another protocol is one of HTTP/1.1, as RFC 9110 allows."""
        self._unset_keepalive_if_required()
        in_body, requests, self._bodies_bytes = self.in_body, self._requests, 0
        rest: bytes | None = data
        while rest is not None and not self.transport.is_closing():
            rest = self._parsed(rest)
        if self.in_head:
            begun = data[data.rfind(HEAD_END) + len(HEAD_END) :] if HEAD_END in data else data
            self.head_bytes += max(0, len(begun) - self._bodies_bytes)
            self._head_ends = (self._head_ends + data[-len(HEAD_END) :])[-len(HEAD_END) + 1 :]
        else:
            self.head_bytes, self._head_ends = 0, b""
        if in_body and self.in_body and requests == self._requests:
            self._beside_bytes += len(data) - self._bodies_bytes

    def _parsed(self, data: bytes) -> bytes | None:
        """What is left behind a request that asks for another protocol: its body, and what comes next."""
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as asked:
            self._begin_anew()
            return data[asked.args[0] :] or None
        except httptools.HttpParserError:
            self.send_400_response(self.fault)
        return None

    def _begin_anew(self) -> None:
        """The parser takes what follows for another protocol, so there is a new one, told what is to come."""
        self.parser = httptools.HttpRequestParser(self)
        if self.in_body:
            self._head_again = True
            framing = b"".join(b"%s: %s\r\n" % each for each in self.headers if each[0] in FRAMES)
            self.parser.feed_data(b"POST / HTTP/1.1\r\n" + framing + b"\r\n")
            self._head_again = False

    def of_head(self, data: bytes) -> int:
        """How many of these bytes belong to the head of a request."""
        if self.in_body:
            return 0
        end = (self._head_ends + data).find(HEAD_END)
        return len(data) if end < 0 else max(0, end - len(self._head_ends))

    @property
    def is_framed_too_much(self) -> bool:
        """Whether more came beside the body than any client needs: chunks of nothing, trailers without an end."""
        return self._beside_bytes > MOST_HEAD_BYTES + FRAMING * self.body_bytes

    def on_message_begin(self) -> None:
        """A request, or once more the one whose head has been read."""
        if not self._head_again:
            self.in_head, self.head_bytes = True, 0
            super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        """Its target."""
        if not self._head_again:
            super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """One of its head; trailers mean nothing here."""
        if self.in_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Its head is here."""
        if self._head_again:
            return
        hosts = sum(name == b"host" for name, _ in self.headers)
        if hosts != 1 and self.parser.get_http_version() == "1.1":
            self._refuse(NO_HOST.format(count=hosts or "none"))
        coded = [value for name, value in self.headers if name == b"transfer-encoding"]
        if coded and [value.strip().lower() for value in coded] != [b"chunked"]:
            self._refuse(CODED.format(value=b", ".join(coded)[:40].decode("latin-1")))
        self.in_head, self.in_body = False, True
        self.body_bytes = self._beside_bytes = 0
        self._requests += 1
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """A piece of its body."""
        self.body_bytes += len(body)
        self._bodies_bytes += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        """All of it is here; the parser leaves out the body of a request that asks for another protocol."""
        if self.parser.should_upgrade() and any(name in FRAMES for name, _ in self.headers):
            return
        self.in_body, self._beside_bytes = False, 0
        super().on_message_complete()

    def _refuse(self, fault: str) -> None:
        self.fault = fault
        raise ValueError(fault)

    def on_response_complete(self) -> None:
        """It is answered."""
        super().on_response_complete()
        if self.timeout_keep_alive_task is not None:
            self.idle()
