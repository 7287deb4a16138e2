"""Tests the bills of leases."""

from waiting import until


def test_a_lease_is_on_the_bill(platform):
    with platform.lease(wait=60, policy="hot") as lease:
        for _ in range(10):
            lease.call(abs, -1)
        (held,) = lease.leases
    until(lambda: platform.bill(held["id"]).lines[0]["usage"]["calls"] >= 10, "the calls are on the bill")
    bill = platform.bill(held["id"])
    (line,) = bill.lines
    assert line["lease"] == held["id"] and line["usage"]["calls"] >= 10
    assert bill.total_nano == line["total_nano"] == line["allocation_nano"] + line["compute_nano"] + line["polling_nano"] > 0
    assert held["id"] in {other["lease"] for other in platform.bill().lines}
    assert held["id"][:8] in repr(bill) and "total" in repr(bill)
    assert "<table>" in bill._repr_html_() and held["id"][:8] in bill._repr_html_()
