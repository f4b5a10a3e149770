"""The presets that come with the project, one YAML file each."""

if __name__ == "configs":
    raise ImportError("this folder is the package rmc_agents.configs: install the project and import that instead")

from pathlib import Path


def find(name: Path) -> Path:
    """The file `name`; the preset of that name where there is no such file."""
    preset = Path(__file__).parent / f"{name}.yaml"
    return preset if str(name) in names() and not name.exists() else name


def names() -> list[str]:
    """The presets' names."""
    return sorted(path.stem for path in Path(__file__).parent.glob("*.yaml"))
