"""`python -m rmc_agents`: lists the commands."""

import sys

from rmc_agents import __version__, command_line
from rmc_agents.commands import COMMANDS


def main() -> int:
    """Prints the commands; returns the exit status."""
    return command_line.run("rmc-agents", _main)


def _main() -> int:
    if "--version" in sys.argv[1:]:
        print(f"rmc-agents {__version__}")
        return 0
    print(f"rmc-agents {__version__}: reinforcement learning for memory tasks\n")
    for name, (_, purpose) in COMMANDS.items():
        print(f"  {name:<13} {purpose}")
    print("\nEvery command takes --help and --version. To start:")
    print("  rmc-evaluate minipacman-rmc     a policy that comes with the package")
    print("  rmc-train --config minipacman-rmc")
    unknown = [word for word in sys.argv[1:] if word not in ("--help", "-h")]
    if unknown:
        raise ValueError(f"expected no arguments, got {' '.join(unknown)}: each command above is its own program")
    return 0


if __name__ == "__main__":
    sys.exit(main())
