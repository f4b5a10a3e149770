"""`import rmc_agents`: its names, and the time it takes."""

import ast
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import rmc_agents
from helpers import forked


@pytest.mark.slow
def test_the_import_loads_nothing_and_names_no_more_than_they_need() -> None:
    code = (
        "import sys; before = set(sys.modules)\n"
        "import rmc_agents as rmc; assert set(sys.modules) - before == {'rmc_agents'}, set(sys.modules) - before\n"
        "assert set(rmc.__all__) < set(dir(rmc))\n"
        "rmc.Config, rmc.make_env, rmc.__version__; assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_every_name_is_there_and_documented() -> None:
    assert [name for name in rmc_agents.__all__ if not inspect.getdoc(getattr(rmc_agents, name))] == []


@pytest.mark.parametrize(("name", "argument"), [("train", "callback"), ("evaluate", "episodes")])
def test_packages_that_are_called_have_their_functions_arguments(name: str, argument: str) -> None:
    assert argument in inspect.signature(getattr(rmc_agents, name)).parameters


def test_type_checkers_see_the_same_names() -> None:
    tree = ast.parse(inspect.getsource(rmc_agents))
    block = next(node for node in tree.body if isinstance(node, ast.If))
    seen = {alias.asname for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert seen - {None} == set(rmc_agents.__all__)
    with pytest.raises(AttributeError, match="no attribute 'LSTN'"):
        rmc_agents.LSTN  # type: ignore[attr-defined]  # noqa: B018


@pytest.mark.slow
def test_evaluate_is_a_package_and_a_function_whichever_is_imported_first(tmp_path: Path) -> None:
    program = (
        "def check(first):\n"
        "    for name in [name for name in sys.modules if name.split('.')[0] == 'rmc_agents']: del sys.modules[name]\n"
        "    import rmc_agents\n"
        "    exec(first)\n"
        "    import rmc_agents.evaluate.episodes as episodes; assert episodes.play\n"
        "    try: rmc_agents.evaluate(3, 'recall')\n"
        "    except ValueError as error: assert 'got int' in str(error)\n"
        "    else: assert False\n"
        "check('import rmc_agents.evaluate.cli')\n"
        "check('rmc_agents.evaluate')"
    )
    forked.run(program, log=tmp_path / "log")
