"""Tests the display of leases in notebooks."""

import html.parser
import time
from types import SimpleNamespace

from sublet._notebook import MOST_NODES, lease_html, table


class Table(html.parser.HTMLParser):
    """The text of a table's cells, row by row; fails where an element is not closed."""

    def __init__(self, text):
        super().__init__()
        self.caption, self.rows, self.scopes, self.open = "", [], [], []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attributes):
        self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        elif tag in ("th", "td"):
            self.rows[-1].append("")
            self.scopes.append((tag, dict(attributes).get("scope")))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open[-1] == "caption":
            self.caption += data
        else:
            self.rows[-1][-1] += data


def lease_of(nodes, *, ended=False, seconds=90.9, package="python"):
    """Makes an object like a lease, of one core and 64 MiB for each node that is named."""
    at = int((time.time() + seconds) * 1000)
    usage = {"calls": 3, "executing_ns": 1_500_000_000, "polling_ns": 0, "allocated_ns": 2_000_000_000}
    parts = [dict(node=node, cores=1, memory_bytes=64 << 20, expires_unix_ms=at, usage=usage) for node in nodes]
    return SimpleNamespace(
        package=package, workers=len(nodes), leases=parts, fabrics=[] if ended else ["shm"] * len(nodes), _ended=parts if ended else None
    )


def test_an_open_lease_shows_what_it_holds_of_each_node():
    shown = Table(lease_html(lease_of(["a", "a", "b"])))
    assert shown.caption == "Lease of python: 3 workers"
    assert shown.rows == [
        ["Node", "Workers", "Memory", "Fabric", "Time left"],
        ["a", "2", "128 MiB", "shm", "1 min 30 s"],
        ["b", "1", "64 MiB", "shm", "1 min 30 s"],
        ["all 2 nodes", "3", "192 MiB", "shm", "1 min 30 s"],
    ]


def test_a_closed_lease_shows_what_it_used():
    shown = Table(lease_html(lease_of(["a", "a"], ended=True)))
    assert shown.caption == "Lease of python: closed"
    assert shown.rows == [["Node", "Calls", "Executing", "Polling", "Held"], ["a", "6", "3.000 s", "0.000 s", "4.000 s"]]


def test_rows_and_columns_are_named_for_screen_readers():
    shown = Table(lease_html(lease_of(["a"])))
    assert shown.scopes == [("th", "col")] * 5 + [("th", "row")] + [("td", None)] * 4


def test_whatever_has_a_name_is_escaped():
    bad = '<script>alert("1 & 2")</script>'
    text = lease_html(lease_of([bad], package=bad)) + table(bad, [bad], [[bad, bad]])
    assert "<script" not in text
    assert Table(lease_html(lease_of([bad], package=bad))).rows[1][0] == bad


def test_of_many_nodes_some_are_listed_and_all_are_counted():
    shown = Table(lease_html(lease_of([f"node-{n}" for n in range(1000)])))
    assert len(shown.rows) == MOST_NODES + 2
    assert shown.rows[-1][:2] == [f"all 1000 nodes, of which {MOST_NODES} are listed", "1000"]


def test_the_time_left_is_said_in_units_that_fit():
    shown = [Table(lease_html(lease_of(["a"], seconds=seconds))).rows[1][-1] for seconds in (-5, 12.9, 7260.9)]
    assert shown == ["none", "12 s", "2 h 1 min"]


def test_a_lease_of_which_nothing_is_known_is_a_table_all_the_same():
    assert Table(lease_html(lease_of([], ended=True))).rows[1] == ["all 0 nodes", "0", "0.000 s", "0.000 s", "0.000 s"]
    assert Table(lease_html(lease_of([]))).rows[1][-1] == "none"


def test_a_notebook_shows_a_lease_before_and_after_its_end(platform):
    with platform.lease(2, memory="64MiB", wait=60) as lease:
        assert lease.call(abs, -1) == 1
        shown = Table(lease._repr_html_())
        assert shown.caption == "Lease of python: 2 workers"
        assert shown.rows[1][1] == "2" and shown.rows[1][3] == "shm"
    shown = Table(lease._repr_html_())
    assert shown.caption == "Lease of python: closed"
    assert shown.rows[1][1] == "1"
