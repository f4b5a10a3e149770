"""The examples of the docs run unchanged."""

import json
import os
import re
import runpy
import sys
from pathlib import Path

import numpy as np
import pytest

from helpers import forked

DOCS = Path(__file__).parent.parent / "docs"
DEPLOY = DOCS / "examples" / "deploy.py"  # see test_exported
EXAMPLES = sorted((DOCS / "examples").glob("*.py"))
SHORT = {
    "core_in_torch_code": "3",
    "kl_penalty": "2000",
    "own_core": "2000",
    "own_env": "2000",
    "own_loop": "3",
    "own_vector_env": "2000",
    "play": "30",
}
"""How long those that take an argument run here: updates, frames or steps."""


@pytest.mark.parametrize("path", [path for path in EXAMPLES if path != DEPLOY], ids=lambda path: path.stem)
def test_example(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [os.fspath(path), *SHORT.get(path.stem, "").split()])
    runpy.run_path(os.fspath(path), run_name="__main__")
    assert capsys.readouterr().out


@pytest.mark.slow
def test_notebook(tmp_path: Path) -> None:
    """Its cells in their order, without Jupyter; its outputs are stored in it, for readers."""
    cells = json.loads((DOCS / "examples" / "attention.ipynb").read_text())["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    program = "\n".join("".join(cell["source"]) for cell in code)
    without_windows = "import matplotlib, warnings; matplotlib.use('agg'); "
    without_windows += "warnings.filterwarnings('ignore', '.*is non-interactive')\n"
    output = forked.run(without_windows + program, log=tmp_path / "log")
    stored = [output for cell in code for output in cell["outputs"]]
    lines = [line for output in stored if output["output_type"] == "stream" for line in output["text"]]
    without_numbers = [re.sub(r"[\d.,]+", "0", text) for text in ("".join(lines), output)]
    assert without_numbers[0] == without_numbers[1]
    assert all(cell["outputs"] for cell in code)


def test_a_page_shows_each() -> None:
    """By a line that includes the file, exactly as it is read when the site is built."""
    pages = "".join(path.read_text() for path in DOCS.rglob("*.md"))
    assert [path.name for path in EXAMPLES if f'\n--8<-- "examples/{path.name}"\n' not in pages] == []


def test_a_lane_of_the_vector_environment_plays_as_one_lane_from_its_seed() -> None:
    signs = runpy.run_path(os.fspath(DOCS / "examples" / "own_vector_env.py"))["Signs"]
    together, alone = signs(4, delay=1), [signs(1, delay=1) for _ in range(4)]
    together.reset(seed=5)
    for lane, env in enumerate(alone):
        env.reset(seed=5 + lane)
    answers = []
    for _ in range(30):
        together.step(np.zeros(4))
        for env in alone:
            env.step(np.zeros(1))
        answers.append(together.answer.tolist())
        assert answers[-1] == [int(env.answer[0]) for env in alone]
    assert len({tuple(answer) for answer in answers}) > 1
