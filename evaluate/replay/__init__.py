"""A page that replays an episode: observations, actions, memory, and the steps at which memory matters."""
