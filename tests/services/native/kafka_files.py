"""Kafka's files in the user's cache: jars, a formatted data directory and a class archive.

All three are made once and then only read. Each is made under a temporary name and renamed when it
is complete, so an interrupted download never counts as one. The archive (class data sharing) only
makes the start faster, 0.9 s instead of 3.7; a JVM that cannot use it goes on without.
"""

import hashlib
import os
import shutil
import signal
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tests.services.catalogue import KAFKA_VERSION, Unavailable
from tests.services.install import announce, find_program, programs, refusal
from tests.services.locks import locked
from tests.services.native.kafka_settings import server_properties
from tests.services.native.server import run
from tests.services.ports import free_port, is_free
from tests.services.processes import wait_until

POM = Path(__file__).parents[1] / "kafka" / "pom.xml"
JVM_OPTIONS = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xlog:disable", "-Xlog:all=error:stderr")
LOG_OPTION = "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"
# Any 22 characters do, as long as the first is no dash.
CLUSTER_ID = "outboxTestBench0000000"


@dataclass(frozen=True)
class KafkaFiles:
    program: Path
    jars: Path
    formatted: Path
    archive: Path

    def java(self, *arguments: str | Path, archiving: bool = False) -> list[str | Path]:
        # The archive is only valid for the same class path in the same order.
        class_path = ":".join(str(jar) for jar in sorted(self.jars.glob("*.jar")))
        option = "ArchiveClassesAtExit" if archiving else "SharedArchiveFile"
        use = [f"-XX:{option}={self.archive}"] if archiving or self.archive.exists() else []
        return [self.program, *JVM_OPTIONS, LOG_OPTION, *use, "-cp", class_path, *arguments]


def cache_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base, "outbox-test-bench", f"kafka-{KAFKA_VERSION}")


def kafka_files() -> KafkaFiles:
    """The files, made first where they are missing."""
    folder = cache_folder()
    java = find_program("java")
    if java is None:
        java = programs("kafka")["java"]
    files = KafkaFiles(java, folder / "lib", folder / "formatted", folder / f"kafka-{_fingerprint(java)}.jsa")
    if not (files.jars.exists() and files.formatted.exists() and files.archive.exists()):
        folder.mkdir(parents=True, exist_ok=True)
        with locked(folder / "lock"):
            if not files.jars.exists():
                _download(files.jars)
            if not files.formatted.exists():
                _format(files)
            if not files.archive.exists():
                _make_archive(files)
    return files


def _fingerprint(java: Path) -> str:
    """Another JVM cannot use this one's archive."""
    about = java.stat()
    return hashlib.sha256(f"{java} {about.st_size} {about.st_mtime_ns}".encode()).hexdigest()[:12]


def _download(jars: Path) -> None:
    refused = refusal(os.environ, user=0, has_apt=True)
    if refused:
        raise Unavailable(f"kafka: its jars are not in {jars} and {refused}")
    maven = programs("kafka")["mvn"]
    announce(f"downloading Kafka {KAFKA_VERSION} with Maven into {jars.parent} for the kafka tests")
    with tempfile.TemporaryDirectory(dir=jars.parent, prefix="download-") as temporary:
        # Maven writes beside the pom.
        pom = shutil.copy(POM, temporary)
        arguments = ["-q", "-B", "-f", pom, "dependency:copy-dependencies"]
        run(
            [maven, *arguments, f"-DoutputDirectory={temporary}/lib", f"-Dkafka.version={KAFKA_VERSION}"],
            "kafka: Maven",
        )
        Path(temporary, "lib").rename(jars)


def _format(files: KafkaFiles) -> None:
    with tempfile.TemporaryDirectory(dir=files.jars.parent, prefix="format-") as temporary:
        data, properties = Path(temporary, "data"), Path(temporary, "server.properties")
        properties.write_text(server_properties(str(data), 1, 2, 3, 1))
        run(files.java("kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c", properties), "kafka: format")
        data.rename(files.formatted)


def _make_archive(files: KafkaFiles) -> None:
    """Start a broker once, let it load its classes and end it in good order."""
    with tempfile.TemporaryDirectory(dir=files.jars.parent, prefix="archive-") as temporary:
        data, properties = Path(temporary, "data"), Path(temporary, "server.properties")
        making = KafkaFiles(files.program, files.jars, files.formatted, Path(temporary, "kafka.jsa"))
        shutil.copytree(files.formatted, data)
        port = free_port()
        properties.write_text(server_properties(str(data), port, free_port(), free_port(), port))
        command = [str(part) for part in making.java("kafka.Kafka", properties, archiving=True)]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as broker:
            try:
                wait_until(lambda: broker.poll() is not None or not is_free(port), 60)
                broker.send_signal(signal.SIGTERM)
                broker.wait(60)
            except BaseException:
                broker.kill()
                raise
        if making.archive.exists():
            making.archive.rename(files.archive)
        else:
            # Kafka starts without it too, only slower: an empty file says that this was tried.
            files.archive.touch()
