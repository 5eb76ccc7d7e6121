from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from alula.core.errors import InputError
from alula.verify import UserMetric, load_metric

SOURCE = """
import metric_neighbour_of_tests
import math
number = 3
def share(predictions, labels, texts):
    return sum(a == b for a, b in zip(predictions, labels)) / len(texts)
def nothing(predictions, labels, texts):
    return None
def not_a_number(predictions, labels, texts):
    return math.nan
def yes(predictions, labels, texts):
    return True
def broken(predictions, labels, texts):
    return predictions[99]
def narrow(predictions):
    return 1.0
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "metric_of_tests.py").write_text(SOURCE)
    (tmp_path / "metric_neighbour_of_tests.py").write_text("")
    (tmp_path / "metric_that_fails.py").write_text("import no_such_package_at_all")
    (tmp_path / "metric_misspelt.py").write_text("def f(:")
    return tmp_path


def scored(name: str, folder: Path) -> float:
    return load_metric(name, folder).score(["a", "b"], ["a", "c"], [("x",), ("y",)])


def test_a_function_is_loaded_by_its_name_and_asked(folder: Path) -> None:
    before = list(sys.path)
    assert scored("metric_of_tests:share", folder) == 0.5
    assert sys.path == before
    assert load_metric("metric_of_tests:share", folder).name == "metric_of_tests:share"


def test_an_installed_module_needs_no_folder() -> None:
    assert load_metric("math:fsum").name == "math:fsum"


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("share", "metric 'share' is not module:function, where metric(predictions, labels, texts) -> float"),
        (":share", "is not module:function"),
        ("metric_of_tests:", "is not module:function"),
        ("no_such_metric:f", "module 'no_such_metric' cannot be imported from the installed packages or"),
        ("metric_that_fails:f", "ModuleNotFoundError: No module named 'no_such_package_at_all'"),
        ("metric_misspelt:f", "SyntaxError: "),
        (".relative:f", "cannot be imported"),
        ("metric_of_tests:other", "module 'metric_of_tests' has no 'other'"),
        ("metric_of_tests:number", "metric 'metric_of_tests:number' is int, expected a function"),
    ],
)
def test_a_name_that_leads_to_no_function_is_refused(folder: Path, name: str, error: str) -> None:
    with pytest.raises(InputError) as refused:
        load_metric(name, folder)
    assert error in str(refused.value)


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("nothing", "gave NoneType, expected float"),
        ("not_a_number", "gave nan, expected a finite number"),
        ("yes", "gave bool, expected float"),
        (
            "broken",
            "raised IndexError: list index out of range; it is called as metric(predictions, labels, texts)",
        ),
        ("narrow", "raised TypeError: narrow() takes 1 positional argument but 3 were given"),
    ],
)
def test_what_is_no_score_is_refused(folder: Path, name: str, error: str) -> None:
    with pytest.raises(InputError) as refused:
        scored(f"metric_of_tests:{name}", folder)
    assert f"metric 'metric_of_tests:{name}' {error}" in str(refused.value)


@pytest.mark.parametrize("value", [np.float32(0.5), np.float64(0.5), 0.5])
def test_any_real_number_is_a_score(value: float) -> None:
    assert UserMetric(name="m:f", function=lambda *given: value).score([], [], []) == 0.5


def test_a_metric_that_changes_what_it_is_given_changes_its_own_copy() -> None:
    labels: list[object] = ["a"]
    UserMetric(name="m:f", function=lambda said, given, texts: float(len(given.pop()))).score(
        ["a"], labels, [("x",)]
    )
    assert labels == ["a"]
