"""Fetching Debian packages for servers that are not on the machine.

Only as root, only with apt-get, never with NO_INSTALL=1, and always announced. The packages'
own services must not start: a server that the machine's owner runs is not ours to add. Debian
asks /usr/sbin/policy-rc.d before it starts one, so ours says no while apt-get works. A bench
that was killed in between leaves that file behind; its mark lets the next run take it away.
"""

import glob
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.services.catalogue import Unavailable, installable
from tests.services.locks import locked

POLICY = Path("/usr/sbin/policy-rc.d")
MARK = "written by the outbox test bench for one apt-get call"
CLUSTER_CONFIG = Path("/etc/postgresql-common/createcluster.conf")
# Debian keeps server programs away from a user's PATH.
PLACES = ("/usr/lib/postgresql/*/bin", "/usr/lib/rabbitmq/bin", "/usr/sbin", "/usr/local/sbin", "/usr/local/bin")


def announce(text: str) -> None:
    print(f"outbox test bench: {text}", file=sys.stderr, flush=True)


def find_program(name: str) -> Path | None:
    """The program's real place; the newest version where several are installed."""
    places = [*os.environ.get("PATH", os.defpath).split(os.pathsep), *PLACES]
    if name.startswith("rabbitmq"):
        # Debian's /usr/sbin/rabbitmq-* change the user first and lose the environment; the plain script does not.
        places.insert(0, "/usr/lib/rabbitmq/bin")
    for pattern in places:
        for folder in sorted(glob.glob(pattern), key=_version, reverse=True):  # noqa: PTH207 - absolute patterns
            found = shutil.which(name, path=folder)
            if found:
                # These two find their other files beside the real program.
                return Path(found).resolve() if name in ("postgres", "java") else Path(found)
    return None


def _version(folder: str) -> tuple[int, ...]:
    return tuple(int(part) for part in folder.replace(".", "/").split("/") if part.isdigit())


def programs(name: str) -> dict[str, Path]:
    """The server's programs by name, installed first if that is needed and allowed."""
    found = _find_all(name)
    if isinstance(found, str):
        with locked(Path(tempfile.gettempdir(), f"outbox-bench-install-{os.geteuid()}.lock")):
            found = _find_all(name)
            if isinstance(found, str):
                refused = refusal(os.environ, os.geteuid(), shutil.which("apt-get") is not None)
                if refused:
                    raise Unavailable(f"{name}: no {found} on this machine and {refused}")
                _install(name, found)
                found = _find_all(name)
    if isinstance(found, str):
        raise Unavailable(f"{name}: {' '.join(installable(name).packages)} is installed but there is still no {found}")
    return found


def _find_all(name: str) -> dict[str, Path] | str:
    """All programs of a server, or the name of the first that is missing."""
    found: dict[str, Path] = {}
    for program in installable(name).programs:
        place = find_program(program)
        if place is None:
            return program
        found[program] = place
    return found


def refusal(environ: Mapping[str, str], user: int, has_apt: bool) -> str | None:
    """Why nothing may be installed here, or None if it may."""
    if environ.get("NO_INSTALL", "") not in ("", "0"):
        return "NO_INSTALL is set"
    if not has_apt:
        return "it cannot be installed without apt-get"
    if user != 0:
        return "only root can install it"
    return None


def _install(name: str, missing: str) -> None:
    packages = installable(name).packages
    announce(f"installing {' '.join(packages)} with apt-get, since there is no {missing} for the {name} tests")
    with _services_stay_down(), _no_default_cluster(name):
        if not any(Path("/var/lib/apt/lists").glob("*Packages*")):
            _apt("update")
        install = ("install", "--yes", "--no-install-recommends", "--no-upgrade", *packages)
        failed = _apt(*install)
        if failed:
            # A stale package list names versions that are gone.
            _apt("update")
            failed = _apt(*install)
    if failed:
        raise Unavailable(f"{name}: apt-get could not install {' '.join(packages)}:\n{failed}")


def _apt(*arguments: str) -> str | None:
    """Run apt-get to its end, also through Ctrl-C: half a dpkg run helps nobody. Returns the error, if any."""
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C"}
    command = ["apt-get", "-q", "-o", "DPkg::Lock::Timeout=120", *arguments]
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
        )
        interrupted: BaseException | None = None
        while True:
            try:
                code = process.wait()
                break
            except (KeyboardInterrupt, SystemExit) as interrupt:
                interrupted = interrupt
        if interrupted is not None:
            raise interrupted
        output.seek(0)
        return None if code == 0 else "\n".join(output.read().splitlines()[-15:])


@contextmanager
def _services_stay_down() -> Iterator[None]:
    if POLICY.exists() and MARK not in POLICY.read_text(errors="replace"):
        # The machine has a policy of its own; it is not ours to replace.
        yield
        return
    POLICY.write_text(f"#!/bin/sh\n# {MARK}\nexit 101\n")
    POLICY.chmod(0o755)
    try:
        yield
    finally:
        POLICY.unlink(missing_ok=True)


@contextmanager
def _no_default_cluster(name: str) -> Iterator[None]:
    """Keep postgresql-common from making its `main` cluster; the setting is taken back afterwards."""
    if name != "postgresql" or CLUSTER_CONFIG.exists():
        yield
        return
    CLUSTER_CONFIG.parent.mkdir(parents=True, exist_ok=True)
    CLUSTER_CONFIG.write_text(f"# {MARK}\ncreate_main_cluster = false\n")
    try:
        yield
    finally:
        CLUSTER_CONFIG.unlink(missing_ok=True)
