"""What several unit tests need."""

import os
from pathlib import Path

import pytest


@pytest.fixture
def empty_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A working directory without a settings file, and an environment without a variable of ours."""
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("OUTBOX_") and not name.startswith("OUTBOX_TEST_")]:
        monkeypatch.delenv(name)
    return tmp_path
