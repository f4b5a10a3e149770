"""The scan of the Relational Memory Core."""
