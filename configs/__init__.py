"""The presets that come with the project, one YAML file each, and the sweeps over their settings."""

if __name__ == "configs":
    raise ImportError("this folder is the package rmc_agents.configs: install the project and import that instead")

from os import PathLike
from pathlib import Path

from rmc_agents.formatting import did_you_mean

FOLDER = Path(__file__).parent
SWEEPS = "sweeps"


def find(name: str | PathLike[str], folder: str = ".") -> Path:
    """The file `name`, else the preset of that name; from the folder `SWEEPS`, the sweep.

    Raises:
      ValueError: if there is neither; the message has the nearest preset.
    """
    if Path(name).exists() and not Path(name).is_dir():
        return Path(name)
    if str(name) not in names(folder):
        what, kind = ("study", "study") if folder == SWEEPS else ("config", "preset")
        hint = did_you_mean(name, names(folder), f"known names: {', '.join(names(folder))}")
        hint = f"did you mean {inside}?" if (inside := Path(name) / "config.yaml").is_file() else hint
        raise ValueError(f"cannot read the {what} {name}: there is no such file or {kind}; {hint}")
    return FOLDER / folder / f"{name}.yaml"


def names(folder: str = ".") -> list[str]:
    """The presets' names, or the sweeps'."""
    return sorted(path.stem for path in (FOLDER / folder).glob("*.yaml"))


def for_env(env: str) -> list[str]:
    """The presets for an environment, by its name up to a - or a colon: `memory-lstm` and others for `memory-s7`."""
    families = {name: name.rpartition("-")[0] or name for name in names()}
    return [name for name, family in families.items() if f"{env}-".startswith((f"{family}-", f"{family}:"))]
