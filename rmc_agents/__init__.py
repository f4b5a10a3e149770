"""Actor-critic agents for memory tasks, with a recurrent core that is swapped by one flag."""

from importlib.metadata import version

__version__ = version("rmc-agents")
