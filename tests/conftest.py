"""Plugins of the suite: the bench of real servers, and databases that hold the outbox tables already."""

pytest_plugins = [
    "tests.services.fixtures",
    "tests.fixtures",
    "tests.publishing",
    "tests.consuming",
    "tests.caching",
    "tests.consumed",
]
