"""PDFs behind a password, by the oldest of the standard's ciphers, which needs nothing but MD5 and RC4."""

from __future__ import annotations

import hashlib
import re

_PADDING = bytes.fromhex("28BF4E5E4E758A4164004E56FFFA01082E2E00B6D0683E802F0CA9FE6453697A")
_ID = b"0123456789abcdef"
_PERMISSIONS = -4
_STREAM = re.compile(rb"(\d+) 0 obj\n(<< /Length \d+ >>\nstream\n)(.*?)(\nendstream)", re.DOTALL)


def locked(raw: bytes, *, user: str, owner: str) -> bytes:
    """A file of `pdfs.pdf`, encrypted: ISO 32000-1, 7.6.3, revision 2, with keys of 40 bits."""
    owned = _rc4(hashlib.md5(_padded(owner), usedforsecurity=False).digest()[:5], _padded(user))
    seed = _padded(user) + owned + _PERMISSIONS.to_bytes(4, "little", signed=True) + _ID
    key = hashlib.md5(seed, usedforsecurity=False).digest()[:5]

    def encrypted(match: re.Match[bytes]) -> bytes:
        own = key + int(match[1]).to_bytes(3, "little") + bytes(2)
        body = _rc4(hashlib.md5(own, usedforsecurity=False).digest()[:10], match[3])
        return match[1] + b" 0 obj\n" + match[2] + body + match[4]

    entry = b"/Encrypt << /Filter /Standard /V 1 /R 2 /O <%s> /U <%s> /P %d >> /ID [<%s> <%s>]" % (
        owned.hex().encode(),
        _rc4(key, _PADDING).hex().encode(),
        _PERMISSIONS,
        _ID.hex().encode(),
        _ID.hex().encode(),
    )
    return _STREAM.sub(encrypted, raw).replace(b"/Root 1 0 R", b"/Root 1 0 R " + entry)


def _padded(password: str) -> bytes:
    return (password.encode("latin-1") + _PADDING)[:32]


def _rc4(key: bytes, data: bytes) -> bytes:
    state, at = list(range(256)), 0
    for index in range(256):
        at = (at + state[index] + key[index % len(key)]) % 256
        state[index], state[at] = state[at], state[index]
    out, left, right = bytearray(), 0, 0
    for byte in data:
        left = (left + 1) % 256
        right = (right + state[left]) % 256
        state[left], state[right] = state[right], state[left]
        out.append(byte ^ state[(state[left] + state[right]) % 256])
    return bytes(out)
