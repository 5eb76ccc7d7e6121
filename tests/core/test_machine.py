from __future__ import annotations

import json

from alula.core.machine import FEATURES, cpu_features, installed, machine


def test_the_machine_is_described_for_json() -> None:
    facts = machine()
    assert json.loads(json.dumps(facts)) == facts
    assert facts["cores"] >= 1
    assert facts["cpu"]
    assert facts["packages"]["numpy"] == installed("numpy")
    assert set(facts["features"]) <= set(FEATURES)
    assert tuple(facts["features"]) == cpu_features()


def test_what_is_not_installed_has_no_version() -> None:
    assert installed("surely-not-installed-here") is None
