from __future__ import annotations

import pytest

from alula.core.errors import InputError
from alula.exposition import Reading, Span
from alula.watching import Watched, figures

BEFORE = """
process_start_time_seconds 1000
alula_requests_active 3
alula_engine_restarts_total 1
"""
AFTER = (
    BEFORE
    + """
alula_requests_total{route="/embed",status="200"} 20
alula_requests_total{route="/metrics",status="200"} 80
alula_requests_total{route="/health/ready",status="503"} 80
alula_requests_total{route="/embed",status="400"} 2
alula_requests_total{route="/embed",status="413"} 2
alula_requests_total{route="/embed",status="429"} 6
alula_requests_total{route="/embed",status="499"} 8
alula_requests_total{route="/embed",status="500"} 10
alula_requests_total{route="/embed",status="503"} 12
alula_requests_total{route="/embed",status="504"} 14
alula_admission_rejected_total{reason="full"} 6
alula_admission_rejected_total{reason="unavailable"} 12
alula_degraded_requests_total{model="m",tier="cpu"} 4
alula_request_duration_seconds_count{model="m",route="/embed"} 20
alula_request_duration_seconds_bucket{le="1.0",model="m",route="/embed"} 20
alula_request_duration_seconds_bucket{le="+Inf",model="m",route="/embed"} 20
alula_request_duration_seconds_count{model="",route="/metrics"} 80
alula_request_duration_seconds_bucket{le="1.0",model="",route="/metrics"} 0
alula_request_duration_seconds_bucket{le="+Inf",model="",route="/metrics"} 80
alula_queue_size{model="m"} 5
alula_tokens_total{model="m"} 90
alula_batch_cells_total{model="m"} 120
alula_padding_ratio_sum{model="m"} 1
alula_padding_ratio_count{model="m"} 2
alula_padding_ratio_sum{model="images"} 1
alula_padding_ratio_count{model="images"} 4
alula_batch_size_count{model="images"} 4
alula_gpu_memory_used_bytes{gpu="0",name="H200"} 30
alula_gpu_memory_total_bytes{gpu="0",name="H200"} 120
alula_gpu_utilization_ratio{gpu="0",name="H200"} 0.5
"""
)


def test_figures_are_those_of_the_time_between_two_readings() -> None:
    span = Span(before=Reading.parse(BEFORE, 10.0), after=Reading.parse(AFTER, 12.0))
    told = figures(span, "ready", "", now=1_060.0)
    assert (told.requests, told.failed, told.refused, told.rejected) == (37.0, 12.0, 2.0, 9.0)
    assert (told.left, told.degraded, told.restarts, told.active, told.up_s) == (4.0, 2.0, 1, 3, 60.0)
    assert told.p50_s == 0.5, "who asks for metrics is no request to a model"
    images, reads = told.models
    assert (reads.name, reads.requests, reads.queued, reads.read) == ("m", 10.0, 5, 45.0)
    assert (reads.padding, images.padding) == (0.25, 0.25)
    (gpu,) = told.gpus
    assert (gpu.name, gpu.busy, gpu.used_bytes, gpu.total_bytes) == ("0 H200", 0.5, 30, 120)


def test_only_models_that_are_loaded_are_told_of_where_the_server_says_which() -> None:
    loaded = AFTER + 'alula_model_memory_bytes{model="m"} 5\n'
    span = Span(before=Reading.parse(BEFORE, 10.0), after=Reading.parse(loaded, 12.0))
    assert [model.name for model in figures(span, "ready", "", now=1_060.0).models] == ["m"]


@pytest.mark.parametrize(
    ("said", "url"),
    [
        ("localhost:8000", "http://localhost:8000"),
        ("http://a:1/metrics", "http://a:1"),
        ("https://a", "https://a"),
        ("[::1]:8000", "http://[::1]:8000"),
    ],
)
def test_an_address_is_host_and_port_and_the_rest_may_be_left_out(said: str, url: str) -> None:
    assert Watched.at(said).url == url


def test_what_is_no_address_is_refused() -> None:
    with pytest.raises(InputError, match="'ftp://a' is no address of a server"):
        Watched.at("ftp://a")
