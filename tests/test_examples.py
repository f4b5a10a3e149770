"""The examples of the docs run as they stand."""

import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from rmc_agents.evaluate import export

DOCS = Path(__file__).parent.parent / "docs"
DEPLOY = DOCS / "examples" / "deploy.py"
EXAMPLES = sorted((DOCS / "examples").glob("*.py"))
SHORT = {"core_in_torch_code": "3", "own_core": "2000", "own_env": "2000", "own_loop": "3", "play": "30"}
"""How long each runs here: updates, frames or steps."""


@pytest.mark.parametrize("path", [path for path in EXAMPLES if path != DEPLOY], ids=lambda path: path.stem)
def test_example(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [os.fspath(path), SHORT[path.stem]])
    runpy.run_path(os.fspath(path), run_name="__main__")
    assert capsys.readouterr().out


@pytest.mark.parametrize("name", [path.name for path in EXAMPLES])
def test_a_page_shows_it(name: str) -> None:
    """By a line that includes the file, exactly as it is read when the site is built."""
    pages = "".join(path.read_text() for path in DOCS.rglob("*.md"))
    assert f'\n--8<-- "examples/{name}"\n' in pages


@pytest.mark.slow
def test_deployment_without_torch_and_this_package(tmp_path: Path) -> None:
    exported = tmp_path / "recall-rmc.onnx"
    assert export.main(["recall-rmc", str(exported), "--format", "onnx", "--episodes", "5"]) == 0
    program = f"""import runpy, sys
sys.modules.update(torch=None, rmc_agents=None)  # not to be imported
runpy.run_path({str(DEPLOY)!r}, run_name="__main__")"""
    command = [sys.executable, "-c", program, str(exported)]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "3 of 3 cues remembered\n"
