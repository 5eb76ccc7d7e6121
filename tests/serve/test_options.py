from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from alula.core.errors import InputError
from alula.serve import ServeOptions


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"bundles": ()}, "no bundle to serve; name at least one"),
        ({"port": 70_000}, r"port is 70000; expected 0\.\.65535"),
        ({"max_client_batch": 0}, r"max_client_batch is 0; expected 1\.\."),
        ({"max_body_bytes": 0}, r"max_body_bytes is 0; expected 1\.\."),
        ({"max_connections": 0}, r"max_connections is 0; expected 1\.\."),
        ({"max_bodies_bytes": 0}, r"max_bodies_bytes is 0; expected 1\.\."),
        ({"max_image_bytes": 0}, r"max_image_bytes is 0; expected 1\.\."),
        ({"max_image_pixels": 0}, r"max_image_pixels is 0; expected 1\.\."),
        ({"max_sequences": 0}, r"max_sequences is 0; expected 1\.\."),
        ({"max_waiting": 0}, r"max_waiting is 0; expected 1\.\."),
        ({"cache_bytes": 0}, r"cache_bytes is 0; expected 1\.\."),
        ({"answer_timeout_s": 0.0}, r"answer_timeout_s is 0\.0; expected more than 0"),
        ({"log_format": "xml"}, "log_format is 'xml'; expected one of: none, text, json"),
        ({"threads": -1}, r"threads is -1; expected 0\.\.1024"),
        ({"body_timeout_s": 0.0}, r"body_timeout_s is 0\.0; expected more than 0"),
        ({"run_timeout_s": 0.0}, r"run_timeout_s is 0\.0; expected more than 0"),
        ({"grace_s": -1.0}, r"grace_s is -1\.0; expected 0\.\.86400"),
        ({"timeout_s": 4_000.0}, r"timeout_s is 4000\.0; expected more than 0 and at most 3600"),
    ],
)
def test_options_that_cannot_work_are_refused(changed: dict[str, Any], message: str) -> None:
    given: dict[str, Any] = {"bundles": (Path("one"),), **changed}
    with pytest.raises(InputError, match=message):
        ServeOptions(**given)
