"""BoxWorld: keys, boxes and one gem, in a room observed through a window."""

from .env import BoxWorldEnv, BoxWorldVectorEnv

__all__ = ["BoxWorldEnv", "BoxWorldVectorEnv"]
