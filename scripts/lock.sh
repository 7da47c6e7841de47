#!/bin/sh
# Compiles requirements/*.in: every version with its hashes, for all platforms, without a line that names a package index.
set -eu
compile() {
    .venv/bin/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --upgrade \
        --no-emit-index-url --no-emit-find-links --custom-compile-command "make lock" "$@"
}
compile requirements/bootstrap.in -o requirements/bootstrap.txt
compile requirements/dev.in --group pyproject.toml:dev -o requirements/dev.txt \
    --no-emit-package outbox-shared --no-emit-package outbox-publisher --no-emit-package outbox-consumer
