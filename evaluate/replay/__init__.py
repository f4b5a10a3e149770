"""One page that replays an episode: what the agent sees, does and remembers, and where its memory matters."""
