"""The mutations of benchmarks/reliability fit the current source; the benchmark itself takes too long for a test."""

import re
from pathlib import Path

import yaml

ROOT = Path(__file__).parent.parent
MUTATIONS = yaml.safe_load((ROOT / "benchmarks/reliability/mutations.yaml").read_text())


def test_every_mutation_changes_one_place() -> None:
    found = {each["name"]: (ROOT / each["file"]).read_text().count(each["old"]) for each in MUTATIONS}
    assert {name: count for name, count in found.items() if count != 1} == {}


def test_every_mutation_names_tests_that_exist() -> None:
    for each in MUTATIONS:
        files, _, expression = each["tests"].partition(" -k ")
        text = "".join((ROOT / file).read_text() for file in files.split())
        words = set(re.findall(r"\w+", expression)) - {"and", "or", "not"}  # of names of tests and their cases
        assert not words or any(word in text for word in words), each["name"]
