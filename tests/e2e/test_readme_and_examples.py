"""What we show is what runs: the README's example and every file of examples/."""

import re
import subprocess
import sys
from pathlib import Path
from uuid import UUID

import pytest

from outbox_publisher.demo.ledger import Ledger

ROOT = Path(__file__).parents[2]


def run(command: list[str], folder: Path, *, says: str = r"") -> str:
    """`says` is all that may stand on stderr."""
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(says, done.stderr), done.stderr
    return done.stdout


def test_the_readme_example_does_what_it_says(tmp_path):
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    (tmp_path / "example.py").write_text(code)

    assert run([sys.executable, "example.py"], tmp_path).split() == ["consumed", "duplicate"]
    assert 20 <= len([line for line in code.splitlines() if line.strip()]) <= 26


def test_the_readme_settings_load(tmp_path):
    (yaml,) = re.findall(r"```yaml\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    (tmp_path / "outbox.yml").write_text(yaml)
    script = "from outbox_publisher import PublisherSettings; print(PublisherSettings.load().delivery_of('order-created').max_retries)"

    assert run([sys.executable, "-c", script], tmp_path) == "5\n"


def test_orders_to_kafka(kafka_url, kafka_topic, tmp_path):
    output = run([sys.executable, str(ROOT / "examples/01_orders_to_kafka.py"), kafka_url, kafka_topic()], tmp_path)

    assert output.splitlines() == ["relayed: 3", "invoices: 3"]


EVENTS_STORED = ["order-placed", "line-added", "line-added", "order-confirmed", "audit", "order-shipped"]


def test_publishing_in_all_its_forms(tmp_path):
    output = run([sys.executable, str(ROOT / "examples/02_publishing.py")], tmp_path).splitlines()

    assert output[:4] == ["batch: 2 stored", "cancelled: True", "confirmed: stored True", "confirmed: stored False"]
    assert [line.split()[1] for line in output[4:]] == EVENTS_STORED


def test_async_publishing(tmp_path):
    output = run([sys.executable, str(ROOT / "examples/03_async_publishing.py")], tmp_path)

    assert output == "sent: line-added, line-added, line-added, order-paid, order-placed\n"


def test_django(tmp_path):
    output = run([sys.executable, str(ROOT / "examples/04_django.py")], tmp_path)

    assert output.splitlines() == ["order 2: out of stock", "sent: 1, 3"]


def test_handlers(tmp_path):
    output = run([sys.executable, str(ROOT / "examples/05_handlers.py")], tmp_path)

    assert output.splitlines() == [
        "told the parents of student 17",
        "reported the absence of student 17: try 1",
        "after one round: 1 delivered, 1 waits",
        "reported the absence of student 17: try 2",
        "after another: 1 delivered, 0 wait",
    ]


def test_fastapi(tmp_path):
    output = run([sys.executable, str(ROOT / "examples/06_fastapi.py")], tmp_path)

    assert sorted(output.splitlines()) == ["mail to Ada: thank you for order 1", "placed: {'id': 1}"]


def test_consuming_batches(tmp_path):
    told = r"bank: failed event 0{8}-0000-0000-0000-0{11}5 \(order-paid\) in .* ms: TypeError\n"
    output = run([sys.executable, str(ROOT / "examples/07_consuming_batches.py")], tmp_path, says=told)

    assert output.splitlines() == [
        "first: consumed, consumed, consumed",
        "second: duplicate, duplicate, duplicate, consumed, failed, consumed, duplicate",
        'put aside: "???" (TypeError)',
        "payments: 5 1600",
    ]


def test_async_consuming(tmp_path):
    output = run([sys.executable, str(ROOT / "examples/08_async_consuming.py")], tmp_path)

    assert output.splitlines() == ["shipped: parcel for order 1, parcel for order 2", "claimed: 3", "parcels: 3"]


def test_every_example_is_run_here():
    tested = Path(__file__).read_text()

    assert [path.name for path in sorted((ROOT / "examples").glob("*.py")) if path.name not in tested] == []


@pytest.mark.slow
@pytest.mark.timeout(90)
def test_the_demo_balances_and_leaves_nothing_behind(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))

    output = run([sys.executable, "-m", "outbox_publisher", "demo", "--orders", "100"], tmp_path)

    ledger = dict(re.findall(r"^  ([a-z ]+?)\s{2,}(\d+)", output, re.MULTILINE))
    absorbed = int(ledger.pop("duplicates absorbed"))
    assert ledger == {
        "published": "81", "rolled back": "20", "delivered": "80", "effects": "80", "dead letters": "1", "lost": "0"
    }  # fmt: skip
    assert absorbed >= 80
    assert "killed with -9 while it held" in output
    assert list(tmp_path.iterdir()) == []
    for pid in re.findall(r"process (\d+)", output):
        assert not Path(f"/proc/{pid}").exists()


EVENTS = [UUID(int=n) for n in range(5)]
BALANCED = {
    "published": set(EVENTS), "rolled_back": 1, "poison": EVENTS[4], "messages": EVENTS[:4], "handed_over": 8,
    "effects": EVENTS[:4], "dead_letters": {EVENTS[4]},
}  # fmt: skip


def test_a_ledger_that_balances_has_no_mistakes():
    assert Ledger(**BALANCED).mistakes() == []


@pytest.mark.parametrize(
    "wrong",
    [
        {"messages": EVENTS[:3], "effects": EVENTS[:3]},
        {"messages": [*EVENTS[:3], UUID(int=99)], "effects": [*EVENTS[:3], UUID(int=99)]},
        {"effects": [*EVENTS[:4], EVENTS[0]]},
        {"effects": EVENTS[:3]},
        {"messages": EVENTS, "effects": EVENTS, "dead_letters": set()},
        {"dead_letters": {EVENTS[4], EVENTS[0]}},
    ],
    ids=["lost", "lost and a phantom", "twice", "no effect", "poison delivered", "dead and delivered"],
)
def test_a_ledger_that_does_not_balance_says_so(wrong):
    assert Ledger(**{**BALANCED, **wrong}).mistakes() != []
