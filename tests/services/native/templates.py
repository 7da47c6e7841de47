"""Data directories made once per bench run and copied for each server: a private server starts in a moment."""

import shutil
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

_locks: dict[str, threading.Lock] = {}
_guard = threading.Lock()


def copy_template(name: str, target: Path, make: Callable[[Path], None]) -> None:
    """Copy the template to `target`; the first caller makes it beside the servers' homes."""
    template = target.parents[1] / f"template-{name}"
    with _guard:
        lock = _locks.setdefault(name, threading.Lock())
    with lock:
        if not template.exists():
            making = template.with_suffix(".making")
            shutil.rmtree(making, ignore_errors=True)
            try:
                make(making)
            except BaseException:
                shutil.rmtree(making, ignore_errors=True)
                raise
            making.rename(template)
    # cp keeps owners and, where the file system can, shares the blocks.
    subprocess.run(["cp", "-a", "--reflink=auto", str(template), str(target)], check=True)
