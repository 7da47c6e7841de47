"""Text of a message's headers, made fit for log lines and labels: a foreign producer may write anything into them."""

LONGEST = 255


def readable(value: str | None) -> str | None:
    """In one line, of a bounded length, without what a terminal would obey."""
    if value is None:
        return None
    cut = value[:LONGEST]
    return (
        cut if cut.isprintable() else "".join(one if one.isprintable() else "\N{REPLACEMENT CHARACTER}" for one in cut)
    )
