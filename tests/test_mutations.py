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
        sources = [ROOT / file for file in files.split()] + list((ROOT / "tests/helpers").glob("*.py"))
        text = "".join(source.read_text() for source in sources)
        words = set(re.findall(r"\w+", expression)) - {"and", "or", "not"}  # of names of tests and their cases
        assert all(word in text for word in words), each["name"]
