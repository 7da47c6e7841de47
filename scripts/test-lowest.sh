#!/bin/sh
# Unit and contract suites in an environment of their own, with the lowest versions that the distributions declare.
# What only the tests need (servers' clients, pytest) is of no interest here and comes as it is pinned for development.
set -eu
uv=.venv/bin/uv
python=.venv-lowest/bin/python
echo "setting up .venv-lowest"
"$uv" venv --quiet --clear --python .venv/bin/python .venv-lowest
"$uv" pip install --quiet --python "$python" --require-hashes -r requirements/dev.txt
"$uv" pip compile --quiet --resolution lowest-direct --no-header --no-annotate --no-emit-index-url --no-emit-find-links \
    --no-emit-package outbox-shared --no-emit-package outbox-publisher --no-emit-package outbox-consumer \
    --python "$python" requirements/lowest.in -o .venv-lowest/lowest.txt
"$uv" pip install --quiet --python "$python" -r .venv-lowest/lowest.txt
"$uv" pip install --quiet --python "$python" --no-deps --no-build-isolation -e shared -e outbox_publisher -e outbox_consumer
grep -E '^(sqlalchemy|pydantic|pydantic-settings|psycopg|confluent-kafka|uuid-utils|typer|cachetools)==' .venv-lowest/lowest.txt
"$python" -m pytest tests/unit tests/contract -m "not full" "$@"
