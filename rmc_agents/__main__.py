"""`python -m rmc_agents`: what the commands are."""

import sys

from rmc_agents import __version__

COMMANDS = {
    "rmc-train": "train an agent, evaluate it, record a video",
    "rmc-evaluate": "how well a saved agent plays, beside random play; what its memory is worth",
    "rmc-watch": "a video of a saved agent at work",
    "rmc-export": "one small file that plays, out of a run",
    "rmc-plot": "learning curves of runs",
    "rmc-compare": "agents by seeds, to one table and one figure",
    "rmc-sweep": "many trainings over ranges of settings, and which was best",
    "rmc-bench": "where training time goes",
}


def main() -> int:
    """Prints the commands; returns the exit status."""
    if "--version" in sys.argv[1:]:
        print(f"rmc-agents {__version__}")
        return 0
    print(f"rmc-agents {__version__}: reinforcement learning for memory tasks\n")
    for name, purpose in COMMANDS.items():
        print(f"  {name:<13} {purpose}")
    print("\nEach takes --help and --version. To begin with:")
    print("  rmc-evaluate minipacman-rmc     a policy that comes with the package")
    print("  rmc-train --config minipacman-rmc")
    unknown = [word for word in sys.argv[1:] if word not in ("--help", "-h")]
    return 2 if unknown else 0


if __name__ == "__main__":
    sys.exit(main())
