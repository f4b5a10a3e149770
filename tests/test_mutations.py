"""The mutations of benchmarks/reliability fit the current source; the benchmark itself takes too long for a test."""

import re
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parent.parent
MUTATIONS = yaml.safe_load((ROOT / "benchmarks/reliability/mutations.yaml").read_text())
FILES = {file for each in MUTATIONS for file in each["tests"].partition(" -k ")[0].split()}


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


def chooses(expression: str, name: str) -> bool:
    """Whether pytest's -k with this expression, or without one, chooses a test by its full name."""
    return not expression or eval(
        re.sub(r"\b(?!and\b|or\b|not\b)[\w-]+", lambda word: str(word[0] in name), expression)
    )


def test_every_mutation_chooses_a_test(request: pytest.FixtureRequest) -> None:
    """Where all tests run: only there are all cases known."""
    names, option = [item.nodeid for item in request.session.items], request.config.option
    is_whole = not (option.markexpr or option.keyword or any("::" in each for each in request.config.args))
    if not is_whole or FILES - {name.partition("::")[0] for name in names}:
        pytest.skip("some tests are left out")
    for each in MUTATIONS:
        files, _, expression = each["tests"].partition(" -k ")
        among = [name for name in names if name.startswith(tuple(files.split()))]
        assert any(chooses(expression.strip("'"), name) for name in among), each["name"]
