"""The mutations of benchmarks/reliability fit the current source; the benchmark itself takes too long for a test."""

from pathlib import Path

import yaml

ROOT = Path(__file__).parent.parent


def test_every_mutation_changes_one_place() -> None:
    mutations = yaml.safe_load((ROOT / "benchmarks/reliability/mutations.yaml").read_text())
    found = {each["name"]: (ROOT / each["file"]).read_text().count(each["old"]) for each in mutations}
    assert {name: count for name, count in found.items() if count != 1} == {}
