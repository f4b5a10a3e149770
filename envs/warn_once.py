"""Warnings that are logged once in a process."""

import logging
from functools import cache

logger = logging.getLogger(__name__)


@cache
def warn_once(message: str, *arguments: object) -> None:
    """Log a warning, unless it has been logged before with the same arguments."""
    logger.warning(message, *arguments)
