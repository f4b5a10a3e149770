"""The presets that come with the project, one YAML file each, and the sweeps over their settings."""

if __name__ == "configs":
    raise ImportError("this folder is the package rmc_agents.configs: install the project and import that instead")

from pathlib import Path

FOLDER = Path(__file__).parent
SWEEPS = "sweeps"


def find(name: Path, folder: str = ".") -> Path:
    """The file `name`; the preset of that name where there is no such file, or the sweep, from the folder `SWEEPS`."""
    preset = FOLDER / folder / f"{name}.yaml"
    return preset if str(name) in names(folder) and not name.exists() else name


def names(folder: str = ".") -> list[str]:
    """The presets' names, or the sweeps'."""
    return sorted(path.stem for path in (FOLDER / folder).glob("*.yaml"))
