"""A run as a fixture."""

from pathlib import Path

import pytest

from helpers.runs import new_run


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run of one update, with every kind of leaf in its checkpoint; not to be changed."""
    run_dir = tmp_path_factory.mktemp("runs") / "run"
    new_run(run_dir, "--core", "lstm", "--env", "minipacman-stack2")
    return run_dir
