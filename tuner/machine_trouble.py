"""When the machine stops a study: no room on the disk, or the cluster gone."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

DISK = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO}


class MachineTroubleError(Exception):
    """The study stops, nothing is lost, and it goes on once what the message says is mended."""


@contextmanager
def disk_trouble(folder: Path) -> Iterator[None]:
    """Turn a disk that takes no more into one sentence about the study's *folder*.

    Raises:
        MachineTroubleError: that happened.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in DISK:
            raise
        raise full(folder, error) from error


def full(folder: Path, error: OSError) -> MachineTroubleError:
    """Return what a disk that takes no more means for the study in *folder*."""
    where = folder if error.filename is None else error.filename
    return MachineTroubleError(
        f"the disk of {folder} must take what a study writes, found: "
        f"{os.strerror(error.errno or 0)} ({where}); nothing that was measured is lost: mend it, "
        "and the same command goes on"
    )
