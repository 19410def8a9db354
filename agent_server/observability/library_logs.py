"""What the SDKs of protocols log, without the contents of requests.

They log a malformed request with an exception that quotes it, once for each request. Their loggers are not this
server's: without another handler, Python writes their warnings to standard error as they are, line breaks included.
"""

from __future__ import annotations

import logging
import traceback
from pathlib import Path

log = logging.getLogger("agent_server.libraries")


def log_without_contents(library: str) -> None:
    """Log a library's warnings and errors under this server's logger instead. library: the name of its top logger."""
    logger = logging.getLogger(library)
    logger.propagate = False
    if not any(isinstance(each, WithoutContents) for each in logger.handlers):
        logger.addHandler(WithoutContents(logging.WARNING))


class WithoutContents(logging.Handler):
    """Logs a record's unformatted message and where its exception was raised: no arguments, and no exception's text."""

    def emit(self, record: logging.LogRecord) -> None:
        message = f"{record.name}: {record.msg}"
        if record.exc_info and (error := record.exc_info[1]) is not None:
            message += f" ({type(error).__name__}"
            if frames := traceback.extract_tb(error.__traceback__):
                message += f" in {Path(frames[-1].filename).name}:{frames[-1].lineno}"
            message += ")"
        log.log(record.levelno, message)  # without arguments it is not formatted, so its own placeholders stay
