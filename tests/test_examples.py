"""The examples of the docs run as they stand."""

import json
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent.parent / "docs" / "examples"
EXAMPLES = sorted(FOLDER.glob("*.py"))
SHORT = {"core_in_torch_code": "3", "own_core": "2000", "own_env": "2000", "own_loop": "3", "play": "30"}
"""How long each runs here: updates, frames or steps."""


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [os.fspath(path), SHORT[path.stem]])
    runpy.run_path(os.fspath(path), run_name="__main__")
    assert capsys.readouterr().out


def test_notebook(tmp_path: Path) -> None:
    """Its cells in their order, without Jupyter; what it shows is stored in it, for those who only read."""
    cells = json.loads((FOLDER / "attention.ipynb").read_text())["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    program = "\n".join("".join(cell["source"]) for cell in code)
    environment = os.environ | {"MPLBACKEND": "agg"}
    command = [sys.executable, "-W", "ignore:.*is non-interactive", "-c", program]
    ran = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")
    stored = [output for cell in code for output in cell["outputs"]]
    told = [line for output in stored if output["output_type"] == "stream" for line in output["text"]]
    without_numbers = [re.sub(r"[\d.,]+", "0", text) for text in ("".join(told), ran.stdout)]
    assert without_numbers[0] == without_numbers[1]
    assert all(cell["outputs"] for cell in code)
