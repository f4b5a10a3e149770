"""Videos of an agent, as mp4 or GIF."""
