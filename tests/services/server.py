"""What the bench can do with a server, whether it runs natively or in a container."""

from typing import Protocol


class Server(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def url(self) -> str:
        """Where clients connect; `host` and `port` are the same place, for a proxy in front of it."""

    @property
    def host(self) -> str: ...

    @property
    def port(self) -> int: ...

    upstream: str | None
    """The URL of the server that this one stands in front of, set before the start."""

    def start(self) -> None:
        """Start it and wait until it answers a real client; raises Unavailable."""

    def stop(self) -> None:
        """Shut it down in an orderly way; data and port stay its own."""

    def abort(self) -> None:
        """End it at once, in its own way where it has one (PostgreSQL: `-m immediate`), else as `kill` does; data and port stay its own."""

    def kill(self) -> None:
        """SIGKILL every process of it, and wait until they are gone."""

    def pause(self) -> None:
        """SIGSTOP every process of it, and wait until they stand still."""

    def resume(self) -> None: ...

    def restart(self) -> None:
        """Stop it if it runs, and start it again on the same port and data."""

    def release(self) -> None:
        """Throw it away: processes and data. Works in every state, also while it starts."""

    def pids(self) -> list[int]: ...

    def log_tail(self) -> str: ...
