"""Which package may import which, checked for every import statement."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PLACES = {name: ROOT / name for name in ("envs", "train", "evaluate", "configs")}
LAYERS = (
    (
        "types",
        "distributions",
        "spaces",
        "config",
        "configs",
        "command_line",
        "plugins",
        "registry",
        "envs",
        "pretrained",
        "tree_checks",
        "files",
        "formatting",
        "lazy",
        "numba_cache",
    ),
    ("kernels",),
    ("tryout",),
    ("cores",),
    ("losses",),
    ("encoders",),
    ("agent",),
    ("episodes", "stream", "collect"),
    ("runs",),
    ("player",),
    ("sb3",),
    ("evaluate",),
    ("train",),
)
"""A module imports from its own layer and from those above it in this list."""
LATE = {("rmc_agents.runs.saved", "rmc_agents.sb3.saved")}
"""Inside a function: archives of Stable-Baselines3 are opened by what is installed for it."""
ALONE = {
    "rmc_agents.numba_cache": {"torch", "rmc_agents"},
    "rmc_agents.envs": {"torch", "rmc_agents"},
    "rmc_agents.types": {"rmc_agents"},
    "rmc_agents.config.settings": {"torch", "rmc_agents.types", "rmc_agents.envs"},
    "rmc_agents.config": {"torch", "rmc_agents.types", "rmc_agents.envs"},
    "rmc_agents.runs.checkpoint": {"rmc_agents.agent", "rmc_agents.config"},
    "rmc_agents.kernels": {"rmc_agents.config", "rmc_agents.envs"},
    "rmc_agents.cores": {"rmc_agents.envs"},
    "rmc_agents.encoders": {"rmc_agents.cores", "rmc_agents.envs"},
    "rmc_agents.distributions": {"rmc_agents.envs", "rmc_agents.spaces", "rmc_agents.config"},
    "rmc_agents.agent": {"rmc_agents.envs"},
    "rmc_agents.sb3": {"rmc_agents.agent", "rmc_agents.encoders", "rmc_agents.losses", "rmc_agents.runs.checkpoint"},
}
"""What else a package does not import, itself excepted."""


def modules() -> dict[str, Path]:
    found = {}
    for folder in (ROOT / "rmc_agents", *PLACES.values()):
        prefix = folder.name if folder.name == "rmc_agents" else f"rmc_agents.{folder.name}"
        for path in folder.rglob("*.py"):
            parts = path.relative_to(folder).with_suffix("").parts
            found[".".join([prefix, *(p for p in parts if p != "__init__")])] = path
    return found


def imports(name: str, path: Path) -> set[str]:
    names = set()
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = package.rsplit(".", node.level - 1)[0] if node.level else ""
            source = ".".join(filter(None, [above, node.module]))
            names |= {f"{source}.{alias.name}" for alias in node.names}
    return names


def inside(name: str, package: str) -> bool:
    return f"{name}.".startswith(f"{package}.")


def layer(name: str) -> int | None:
    """None: the top of the package, whose names are imported at first use."""
    for number, members in enumerate(LAYERS):
        if any(inside(name, f"rmc_agents.{member}") for member in members):
            return number
    return None


def test_every_module_has_a_layer() -> None:
    without = {name for name in modules() if layer(name) is None}
    assert without <= {"rmc_agents", "rmc_agents.__main__", "rmc_agents.commands"}


@pytest.mark.parametrize("members", LAYERS, ids=lambda members: members[0])
def test_imports_go_up_the_list(members: tuple[str, ...]) -> None:
    for name, path in modules().items():
        own = layer(name)
        if own is None or LAYERS[own] != members:
            continue
        for imported in imports(name, path):
            used = layer(imported)
            late = any(name == one and inside(imported, other) for one, other in LATE)
            assert used is None or used <= own or late, f"{name} imports {imported}"


@pytest.mark.parametrize("package", ALONE)
def test_packages_import_only_what_they_may(package: str) -> None:
    members = {name: path for name, path in modules().items() if inside(name, package)}
    assert members
    for name, path in members.items():
        for imported in imports(name, path):
            if inside(imported, "rmc_agents.numba_cache"):
                continue  # it imports nothing of the project
            wrong = [f for f in ALONE[package] if inside(imported, f) and not inside(imported, package)]
            assert not wrong, f"{name} imports {imported}"


def test_losses_import_only_types_and_distributions() -> None:
    allowed = ("rmc_agents.losses", "rmc_agents.types", "rmc_agents.distributions")
    for name, path in modules().items():
        if inside(name, "rmc_agents.losses"):
            ours = {each for each in imports(name, path) if inside(each, "rmc_agents")}
            assert not {each for each in ours if not any(inside(each, place) for place in allowed)}, name


def test_every_package_is_installed() -> None:
    """The folders have other names than their packages, so setuptools cannot find them by itself."""
    packages = {name for name, path in modules().items() if path.name == "__init__.py"}
    listed = (ROOT / "pyproject.toml").read_text()
    assert not [name for name in packages if f'"{name}",' not in listed]


@pytest.mark.parametrize("folder", PLACES)
def test_folders_are_not_importable_by_their_bare_names(folder: str) -> None:
    command = [sys.executable, "-c", f"import {folder}"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert f"rmc_agents.{folder}" in result.stderr
