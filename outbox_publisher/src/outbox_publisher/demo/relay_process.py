"""The relay as a user runs it: `outbox-publisher run`, a process of its own, with a settings file."""

import os
import subprocess
import sys
from pathlib import Path


class RelayProcess:
    """At most one at a time; the settings and the log of all that were started are in `folder`."""

    def __init__(self, folder: Path, settings: str) -> None:
        self.settings_file = folder.resolve() / "outbox.yml"
        self.settings_file.write_text(settings)
        self._log = folder / "relay.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, *options: str) -> int:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("OUTBOX_")}
        command = [sys.executable, "-m", "outbox_publisher", "run", *options]
        environment["OUTBOX_CONFIG"] = str(self.settings_file)
        with self._log.open("ab") as log:  # in the demo's own folder: a .env file where we are may name a real database
            self._process = subprocess.Popen(
                command, env=environment, cwd=self.settings_file.parent, stdout=log, stderr=log
            )
        return self._process.pid

    def kill(self) -> None:
        """kill -9: no chance to tidy up."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def stop(self) -> int | None:
        """SIGTERM, as a deployment does; returns the exit code. One that does not listen is killed in the end."""
        if self._process is None:
            return None
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(15)
            except subprocess.TimeoutExpired:
                self.kill()
        return self._process.returncode

    def log_tail(self) -> str:
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-15:]) if self._log.exists() else ""

    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None
