"""How long to wait. Pure: the caller brings the randomness (a number from 0 to 1)."""

from outbox_publisher.settings import BackoffSettings

LONGEST_PAUSE = 10.0


def retry_delay(backoff: BackoffSettings, attempt: int, chance: float) -> float:
    """Seconds until the next send after the failed send number `attempt` (the first is 1).

    min(max-delay, delay · multiplier^(attempt-1)) plus up to `jitter` of it; a constant delay where backoff is disabled.
    """
    delay = backoff.delay.total_seconds()
    if backoff.enabled:
        longest = backoff.max_delay.total_seconds()
        try:
            delay = min(longest, delay * float(backoff.multiplier ** (attempt - 1)))
        except OverflowError:  # after hundreds of attempts the power is more than a float holds
            delay = longest
    return delay * (1 + backoff.jitter * chance)


def pause_after(failures: int, base: float, chance: float) -> float:
    """Seconds until the next turn of a loop after this many turns in a row met an unavailable broker or database."""
    if failures == 0:
        return base * (1 + 0.1 * chance)
    doubled = max(base, 0.1) * float(1 << min(failures, 16))
    return min(LONGEST_PAUSE, doubled) * (1 - 0.2 * chance)
