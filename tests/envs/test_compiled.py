"""Cached machine code is not used after a change of a function that it calls, in another file."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import rmc_agents

ROOT = Path(rmc_agents.__file__).parent.parent
CALLED = "from {module} import inlined\n\n\n@inlined\ndef number():\n    return {number}\n"
CALLER = (
    "from {module} import {decorator}\nfrom called import number\n\n\n@{decorator}\ndef get():\n    return number()\n"
)


@pytest.mark.parametrize(
    ("path", "decorator"), [("envs/random_stream.py", "compiled"), ("rmc_agents/kernels/pointwise.py", "jit")]
)
def test_a_change_in_another_file_is_compiled(path: str, decorator: str, tmp_path: Path) -> None:
    shutil.copy(ROOT / path, tmp_path)
    module, found = Path(path).stem, []
    (tmp_path / "caller.py").write_text(CALLER.format(module=module, decorator=decorator))
    for number in (1, 2):
        (tmp_path / "called.py").write_text(CALLED.format(module=module, number=number))
        command = [sys.executable, "-c", "import caller; print(caller.get())"]
        found.append(subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout)
    assert found == ["1\n", "2\n"]
