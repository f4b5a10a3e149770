"""Who may import whom, held by walking every import statement."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PLACES = {name: ROOT / name for name in ("envs", "train", "evaluate", "configs")}
FORBIDDEN = {
    "rmc_agents.envs": {"torch", "rmc_agents"},
    "rmc_agents.types": {"rmc_agents"},
    "rmc_agents.config": {"rmc_agents"},
    "rmc_agents.losses": {"rmc_agents"},
    "rmc_agents.checkpoint": {"rmc_agents"},
    "rmc_agents.kernels": {"rmc_agents.cores", "rmc_agents.agent", "rmc_agents.envs", "rmc_agents.config"},
    "rmc_agents.cores": {"rmc_agents.agent", "rmc_agents.encoders", "rmc_agents.envs", "rmc_agents.losses"},
    "rmc_agents.encoders": {"rmc_agents.agent", "rmc_agents.cores", "rmc_agents.envs"},
    "rmc_agents.agent": {"rmc_agents.train", "rmc_agents.evaluate", "rmc_agents.envs", "rmc_agents.sb3"},
    "rmc_agents.sb3": {"rmc_agents.agent", "rmc_agents.encoders", "rmc_agents.losses", "rmc_agents.checkpoint"},
    "rmc_agents": {"rmc_agents.train", "rmc_agents.evaluate"},
    "rmc_agents.train": {"rmc_agents.evaluate", "rmc_agents.encoders"},
    "rmc_agents.evaluate": {"rmc_agents.train", "rmc_agents.encoders"},
}


def modules() -> dict[str, Path]:
    found = {}
    for folder in (ROOT / "rmc_agents", *PLACES.values()):
        prefix = folder.name if folder.name == "rmc_agents" else f"rmc_agents.{folder.name}"
        for path in folder.rglob("*.py"):
            parts = path.relative_to(folder).with_suffix("").parts
            found[".".join([prefix, *(p for p in parts if p != "__init__")])] = path
    return found


def imports(path: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def inside(name: str, package: str) -> bool:
    return f"{name}.".startswith(f"{package}.")


@pytest.mark.parametrize("package", FORBIDDEN)
def test_imports_go_one_way(package: str) -> None:
    members = {name: path for name, path in modules().items() if inside(name, package)}
    assert members
    for name, path in members.items():
        if package == "rmc_agents" and any(inside(name, f"rmc_agents.{place}") for place in PLACES):
            continue
        for imported in imports(path):
            wrong = [f for f in FORBIDDEN[package] if inside(imported, f) and not inside(imported, package)]
            assert not wrong, f"{name} imports {imported}"


def test_only_the_agent_knows_encoders() -> None:
    knowing = {name for name, path in modules().items() if any(inside(i, "rmc_agents.encoders") for i in imports(path))}
    assert knowing == {"rmc_agents.agent"}


@pytest.mark.parametrize("folder", PLACES)
def test_folders_are_not_importable_by_their_bare_names(folder: str) -> None:
    command = [sys.executable, "-c", f"import {folder}"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert f"rmc_agents.{folder}" in result.stderr
