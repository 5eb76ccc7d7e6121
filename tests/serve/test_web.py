"""The files of the page at `/`, and how they are sent."""

from __future__ import annotations

import re

import pytest
from served import Running

from alula.serve import web

MOST_BYTES = 150_000


def test_the_page_is_small_and_names_no_address_elsewhere() -> None:
    assert sum(map(len, web.files().values())) < MOST_BYTES
    for name, content in web.files().items():
        text = content.decode("utf-8").replace("http://www.w3.org/2000/svg", "")
        assert not re.search(r"https?://|[\"'(]//|@import", text), name


def test_no_file_needs_what_its_policy_forbids() -> None:
    for name, content in web.files().items():
        text = content.decode("utf-8")
        assert not re.search(
            r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|Storage\b|cookie", text
        ), name
        if name.endswith(".html"):
            assert not re.search(r"<script(?![^>]*\ssrc=)|<style|\sstyle=|\son\w+=", text), name


@pytest.mark.parametrize("path", web.paths())
def test_a_file_is_sent_with_its_kind_and_its_policy_and_once(server: Running, path: str) -> None:
    sent, name = server.client.get(path), web.paths()[path]
    assert (sent.status_code, sent.content) == (200, web.files()[name])
    assert sent.headers["content-type"] == web.KINDS[name.rpartition(".")[2]]
    assert sent.headers["content-security-policy"] == web.POLICY
    assert sent.headers["x-content-type-options"] == "nosniff"
    again = server.client.get(path, headers={"if-none-match": sent.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert server.client.head(path).headers["etag"] == sent.headers["etag"]


@pytest.mark.parametrize(
    "path", ["/page/", "/page/index.html", "/page/nothing.js", "/page/../app.py", "/page/%2e%2e/app.py"]
)
def test_no_other_file_is_sent(server: Running, path: str) -> None:
    assert server.client.get(path).status_code == 404


def test_every_script_and_style_that_is_asked_for_is_there() -> None:
    for name, content in web.files().items():
        text = content.decode("utf-8")
        for asked in re.findall(r'(?:from|src|href)[= ]"(?:\./|page/)([\w.]+)"', text):
            assert asked in web.files(), f"{name} asks for {asked}"


def test_the_figures_that_the_page_draws_are_among_those_of_the_server(server: Running) -> None:
    server.post("/embed", {"inputs": "a"})
    chat = {"messages": [{"role": "user", "content": "ab"}], "max_tokens": 2}
    server.post("/v1/chat/completions", chat)
    told = server.client.get("/metrics").text
    names = re.findall(r'"((?:alula|process)_\w+)"', web.files()["live.js"].decode())
    assert len(names) >= 12
    for name in names:
        assert re.search(rf"^{name}[ {{]", told, re.MULTILINE), (
            f"{name} is drawn, and /metrics does not have it"
        )
