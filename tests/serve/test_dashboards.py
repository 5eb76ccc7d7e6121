"""The dashboard and the alerts that are shipped, held to a real Prometheus that scrapes a loaded server.

Needs `prometheus` and `promtool` (on Debian: apt-get install prometheus); `make dashboards` runs it.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from types import ModuleType
from typing import Any

import httpx
import pytest
import served
from prometheus_client import generate_latest

from alula.batching import Ran
from alula.serve.gpus import Gpu, GpuUsage
from alula.serve.metrics import Metrics

ROOT = Path(__file__).parent.parent.parent
DASHBOARD = ROOT / "deploy" / "grafana" / "alula.json"
RULES = ROOT / "deploy" / "prometheus"
TOOLS = [shutil.which(name) for name in ("prometheus", "promtool")]
needs_prometheus = pytest.mark.skipif(
    None in TOOLS, reason="NO PROMETHEUS and promtool here; apt-get install prometheus"
)


def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_dashboard", ROOT / "tools" / "make_dashboard.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses look for it
    spec.loader.exec_module(module)
    return module


def queries(dashboard: dict[str, Any]) -> list[str]:
    """Every expression of a dashboard, with everything picked."""
    found = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())]
    every = {"$job": ".*", "$instance": ".*", "$model": ".*", "$__rate_interval": "1m"}
    for name, value in every.items():
        found = [expr.replace(name, value) for expr in found]
    assert not [expr for expr in found if "$" in expr]
    return found


def test_the_dashboard_is_what_its_tool_makes() -> None:
    assert DASHBOARD.read_text() == tool().written()


def test_panels_have_numbers_and_places_of_their_own() -> None:
    panels = json.loads(DASHBOARD.read_text())["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels) > 25
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert max(x for x, _ in cells) < 24
        assert not cells & taken, panel["title"]
        taken |= cells


REPLAYED = Ran(
    rows=1,
    tokens=3,
    longest=4,
    cells=4,
    seconds=0.1,
    waited=(0.0,),
    failed=False,
    ran_before=True,
    replayed=True,
)


class Page(BaseHTTPRequestHandler):
    """What a server says that has a GPU and answers by something cheaper: the same collectors, other facts."""

    metrics = Metrics()
    metrics.registry.register(
        GpuUsage(
            lambda: (Gpu(index=0, name="H200", busy=0.5, used_bytes=1 << 30, total_bytes=1 << 37),), dict
        )
    )

    def do_GET(self) -> None:
        self.metrics.degraded("tiny/embeddings", "cpu")
        self.metrics.batch("tiny/embeddings", REPLAYED)
        body = generate_latest(self.metrics.registry)
        self.send_response(200)
        self.send_header("content-type", "text/plain; version=0.0.4")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@contextlib.contextmanager
def page() -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), Page)
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


CONFIG = """
global: {{ scrape_interval: 1s, scrape_timeout: 900ms, evaluation_interval: 1s }}
rule_files: ["{rules}"]
scrape_configs:
  - job_name: alula
    static_configs: [{{ targets: [{targets}] }}]
"""


@dataclass(frozen=True)
class Prometheus:
    client: httpx.Client

    def get(self, path: str, **params: str) -> Any:
        answer = self.client.get(f"/api/v1/{path}", params=params).json()
        assert answer["status"] == "success", answer
        return answer["data"]

    def answers(self, expr: str) -> bool:
        """Whether an expression gives a number at least, once the last look at each target was in time."""
        served.wait_until(self.sees_both, within_s=30)
        found = self.get("query", query=expr)["result"]
        return any(sample["value"][1] != "NaN" for sample in found)

    def sees_both(self) -> bool:
        """Whether both targets answered when they were asked last; else what they said before is out of date."""
        return len(self.get("query", query='up{job="alula"} == 1')["result"]) == 2

    def scraped(self) -> bool:
        """Whether both targets were read some times, while there was something to count."""
        found = self.get("query", query='count_over_time(up{job="alula"}[1m]) >= 4')["result"]
        return len(found) == 2


@contextlib.contextmanager
def prometheus(folder: Path, targets: list[str]) -> Iterator[Prometheus]:
    shutil.copy(RULES / "alerts.yml", folder)
    listed = ", ".join(f'"{target}"' for target in targets)
    (folder / "prometheus.yml").write_text(CONFIG.format(rules=folder / "alerts.yml", targets=listed))
    port = served.free_port()
    command = [
        str(TOOLS[0]),
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
        "--log.level=error",
    ]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        try:
            with httpx.Client(base_url=f"http://127.0.0.1:{port}") as client:
                served.wait_until(lambda: _is_ready(client))
                yield Prometheus(client)
        finally:
            process.terminate()


def _is_ready(client: httpx.Client) -> bool:
    try:
        return client.get("/-/ready").status_code == 200
    except httpx.HTTPError:
        return False


def load(server: served.Running, gate: Path) -> None:
    """Every ending that a request may have: answered, left, refused, not taken, late, failed."""
    chat = {"messages": [{"role": "user", "content": "abc"}]}
    server.post("/embed", {"inputs": ["a", "b hello"]}).raise_for_status()
    server.post("/v1/chat/completions", chat).raise_for_status()
    long = {"messages": [{"role": "user", "content": "abc" * 100}], "stream": True}
    with server.client.stream("POST", "/v1/chat/completions", json=long) as response:
        next(response.iter_lines())  # and leave
    assert server.post("/embed", {"inputs": 3}).status_code == 400
    assert server.post("/embed", {"inputs": "broken"}).status_code == 500
    gate.unlink(missing_ok=True)
    with ThreadPoolExecutor(6) as pool:
        late = pool.submit(server.post, "/embed", {"inputs": "slow"}, **{"x-request-timeout-ms": "300"})
        time.sleep(0.1)
        full = list(pool.map(lambda _: server.post("/embed", {"inputs": ["a"] * 4}, **LATE), range(5)))
        assert late.result().status_code == 504
    assert 429 in {answer.status_code for answer in full}
    gate.touch()
    served.wait_until(lambda: served.metric(server, "alula_requests_active") == 0)


LATE = {"x-request-timeout-ms": "300"}


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    root = tmp_path_factory.mktemp("watched")
    bundles = [served.make_bundle(root / "reads"), served.make_writer(root / "writes")]
    gate = root / "gate"
    options: dict[str, Any] = {"max_client_batch": 4, "max_waiting_rows": 4}
    with (
        served.running(bundles, env={"SCRIPTED_GATE": str(gate)}, **options) as server,
        page() as other,
    ):
        load(server, gate)  # a counter that is first seen with its value has not grown
        with prometheus(root, [server.url.removeprefix("http://"), other]) as found:
            while not found.scraped():
                load(server, gate)
            yield found


@needs_prometheus
def test_every_expression_of_the_dashboard_answers(watched: Prometheus) -> None:
    asked = queries(json.loads(DASHBOARD.read_text()))
    assert [expr for expr in asked if not watched.answers(expr)] == []
    assert len(asked) > 35


@needs_prometheus
def test_every_expression_of_the_alerts_answers_and_has_a_limit(watched: Prometheus) -> None:
    (group,) = watched.get("rules")["groups"]
    assert len(group["rules"]) > 8
    for rule in group["rules"]:
        assert rule["health"] == "ok", rule
        sides = re.split(r" (?:==|>|<) (?=[0-9.]+$)", rule["query"])
        assert len(sides) == 2, rule["query"]
        expr = sides[0].replace("[15m]", "[1m]").replace("[5m]", "[1m]")
        assert watched.answers(expr), rule["name"]


@needs_prometheus
def test_what_is_picked_above_the_panels_is_there(watched: Prometheus) -> None:
    for variable in json.loads(DASHBOARD.read_text())["templating"]["list"]:
        if variable["type"] == "query":
            found = re.fullmatch(r"label_values\((.*), (\w+)\)", variable["query"]["query"])
            assert found is not None
            selector = re.sub(r"\$\w+", ".*", found[1])
            names = {series[found[2]] for series in watched.get("series", **{"match[]": selector})}
            assert names, variable


@needs_prometheus
def test_a_name_that_is_wrong_gives_no_answer(watched: Prometheus) -> None:
    (expr, *_) = queries(json.loads(DASHBOARD.read_text()))
    assert watched.answers(expr)
    assert not watched.answers(expr.replace("alula_engine_up", "alula_engine_upp"))
    assert not watched.answers('rate(alula_requests_total{routes="/embed"}[1m])')


def promtool(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(TOOLS[1]), *words], cwd=folder, capture_output=True, text=True, check=False)


@needs_prometheus
def test_alerts_rise_when_they_should_and_not_before() -> None:
    done = promtool(RULES, "test", "rules", "alerts_test.yml")
    assert done.returncode == 0, done.stdout + done.stderr
    assert promtool(RULES, "check", "config", "prometheus.yml").returncode == 0
    tested = set(re.findall(r"alertname: (\w+)\n +exp_alerts", (RULES / "alerts_test.yml").read_text()))
    assert tested == set(re.findall(r"alert: (\w+)", (RULES / "alerts.yml").read_text()))


@needs_prometheus
@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        (
            "> 0.01\n        for: 5m\n        labels: { severity: page }",
            "> 0.1\n        for: 5m\n        labels: { severity: page }",
        ),
        ("> 0.01\n", "> 0.1\n"),
        ('status="504"', 'status="500|504"'),
        ("(alula_engine_up", "(alula_engine_upp"),
        ("[15m]) > 2", "[1m]) > 2"),
        ('model!="", route!~', 'model="", route!~'),
    ],
)
def test_a_fault_in_an_alert_is_seen(tmp_path: Path, right: str, wrong: str) -> None:
    text = (RULES / "alerts.yml").read_text()
    assert right in text
    (tmp_path / "alerts.yml").write_text(text.replace(right, wrong, 1))
    shutil.copy(RULES / "alerts_test.yml", tmp_path)
    assert promtool(tmp_path, "test", "rules", "alerts_test.yml").returncode == 1


def test_every_metric_stands_in_the_docs(server: served.Running) -> None:
    found = set(re.findall(r"# TYPE (alula_\w+)", server.client.get("/metrics").text))
    page = (ROOT / "docs" / "operations.md").read_text()
    assert sorted(name for name in found if f"`{name}`" not in page) == []
    assert len(found) > 20
