"""Displays leases in notebooks: as tables of HTML for people and for screen readers."""

import html
import itertools
import time

# Most nodes that are listed; the sums are of all.
MOST_NODES = 20


def lease_html(lease):
    """A lease by its nodes: what is held of each while it is open, and once it is closed what was used there."""
    closed = lease._ended is not None
    parts = lease.leases
    # An ended lease has no connections any more, so nothing carries its calls.
    fabrics = () if closed else lease.fabrics[: len(parts)]
    by_node = {}
    for part, fabric in itertools.zip_longest(parts, fabrics, fillvalue=""):
        by_node.setdefault(part["node"], []).append((part, fabric))
    columns = _USED if closed else _HELD
    rows = [[node, *(cell(parts) for _, cell in columns)] for node, parts in itertools.islice(by_node.items(), MOST_NODES)]
    if len(by_node) != 1:
        whole = [part for parts in by_node.values() for part in parts]
        listed = f"all {len(by_node)} nodes"
        if len(by_node) > MOST_NODES:
            listed += f", of which {MOST_NODES} are listed"
        rows.append([listed, *(cell(whole) for _, cell in columns)])
    state = "closed" if closed else _count(lease.workers, "worker")
    return table(f"Lease of {lease.package}: {state}", ["Node", *(name for name, _ in columns)], rows)


def table(caption, columns, rows):
    """A table; the first cell of each row names it."""
    head = "".join(f'<th scope="col">{html.escape(name)}</th>' for name in columns)
    body = "".join(_row(row) for row in rows)
    return f"<table><caption>{html.escape(caption)}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _row(cells):
    first, *others = (html.escape(str(cell)) for cell in cells)
    return f'<tr><th scope="row">{first}</th>' + "".join(f"<td>{cell}</td>" for cell in others) + "</tr>"


def _count(number, noun):
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _total(name):
    return lambda parts: sum(part[name] for part, _ in parts)


def _used(name):
    return lambda parts: sum(part.get("usage", {}).get(name, 0) for part, _ in parts)


def _seconds(used):
    return lambda parts: f"{used(parts) / 1e9:.3f} s"


def _memory(parts):
    return f"{_total('memory_bytes')(parts) / (1 << 20):,.0f} MiB"


def _fabrics(parts):
    return ", ".join(sorted({fabric for _, fabric in parts if fabric}))


def _time_left(parts):
    ends_at = min((part["expires_unix_ms"] for part, _ in parts), default=0) / 1000
    left = int(ends_at - time.time())
    if left <= 0:
        return "none"
    hours, minutes, seconds = left // 3600, left // 60 % 60, left % 60
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {seconds} s" if minutes else f"{seconds} s"


_HELD = [("Workers", _total("cores")), ("Memory", _memory), ("Fabric", _fabrics), ("Time left", _time_left)]
_USED = [
    ("Calls", _used("calls")),
    ("Executing", _seconds(_used("executing_ns"))),
    ("Polling", _seconds(_used("polling_ns"))),
    ("Held", _seconds(_used("allocated_ns"))),
]
