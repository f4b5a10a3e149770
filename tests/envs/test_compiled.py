"""Cached machine code is not used after a change of a function that it calls, in another file."""

import shutil
from pathlib import Path

import rmc_agents
from helpers import forked

ROOT = Path(rmc_agents.__file__).parent.parent
COMPILERS = {"random_stream": ("envs", "compiled"), "pointwise": ("rmc_agents/kernels", "jit")}
CALLED = "from {module} import inlined\n\n\n@inlined\ndef number():\n    return {number}\n"
CALLER = (
    "from {module} import {decorator}\nfrom called_{module} import number\n\n\n"
    "@{decorator}\ndef get():\n    return number()\n"
)


def test_a_change_in_another_file_is_compiled(tmp_path: Path) -> None:
    for module, (folder, decorator) in COMPILERS.items():
        shutil.copy(ROOT / folder / f"{module}.py", tmp_path)
        (tmp_path / f"caller_{module}.py").write_text(CALLER.format(module=module, decorator=decorator))
    program, found = "sys.path.insert(0, sys.argv[1])\n", []
    program += "".join(f"import caller_{module} as c; print(c.get())\n" for module in COMPILERS)
    for number in (1, 2):
        for module in COMPILERS:
            (tmp_path / f"called_{module}.py").write_text(CALLED.format(module=module, number=number))
        found.append(forked.run(program, str(tmp_path), log=tmp_path / f"log{number}"))
    assert found == ["1\n1\n", "2\n2\n"]
