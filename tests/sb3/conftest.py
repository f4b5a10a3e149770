"""A run of Stable-Baselines3's as a fixture."""

from pathlib import Path

import pytest

from helpers.runs import train

pytest.importorskip("sb3_contrib", reason="Stable-Baselines3 is not installed: pip install rmc-agents[sb3]")


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of recurrent-ppo, of 10 updates."""
    run_dir = tmp_path_factory.mktemp("runs") / "run"
    flags = ["--algo", "recurrent-ppo", "--total-frames", "400", "--save-every", "1e-9"]
    assert train(*flags, "--run-dir", str(run_dir)) == 0
    return run_dir
