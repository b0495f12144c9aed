"""How FileExists is asked: one look at the file system, inside the allowed folders."""

import stat
import time
from pathlib import Path
from typing import Any

from layby.trigger_manager.access_checks import AccessChecks
from layby.triggers.built_in import FileExists


class FilePolls:
    def __init__(self, checks: AccessChecks) -> None:
        self._checks = checks

    def ask(self, trigger: FileExists) -> dict[str, Any] | None:
        """Blocks: a file system may be remote, and not answer."""
        real = self._checks.check_folder(trigger.path)
        try:
            found = Path(real).lstat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        if stat.S_ISLNK(found.st_mode):
            return None  # it became a link since it was followed: the next look follows it again
        is_young = time.time() - found.st_mtime < trigger.settled_for  # the file system's clock
        if found.st_size < trigger.min_size or (trigger.settled_for and is_young):
            return None
        modified_at = round(found.st_mtime * 1000)
        return {"path": trigger.path, "size": found.st_size, "modified_at": modified_at}
