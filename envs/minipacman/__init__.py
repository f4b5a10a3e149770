"""Mini PacMan: rules, compiled engine, environments, drawings."""
