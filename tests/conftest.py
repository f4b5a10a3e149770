"""One thread: the tests' tensors are small, and their results then do not depend on the machine's cores."""

import os

os.environ["OMP_NUM_THREADS"] = "1"
os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
