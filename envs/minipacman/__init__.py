"""Mini PacMan: rules, compiled engine, environments, rendering."""
