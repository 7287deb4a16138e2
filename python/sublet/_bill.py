"""Bills: usage and costs of leases."""

from html import escape

# Columns of the table.
_COLUMNS = ("lease", "package", "cores", "calls", "allocated s", "executing s", "polling s", "cost")


class Bill:
    """Usage and costs, with a line for each lease, the newest first.

    `lines` are dicts: `lease`, `tenant`, `package`, `pu`, `cores`, `memory_bytes`, `usage` (nanoseconds and calls), and the cost of
    allocation, computing and polling and their sum, in nano-units: billionths of the currency.
    """

    def __init__(self, lines):
        self.lines = lines

    @property
    def total_nano(self):
        """Total costs, in nano-units."""
        return sum(line["total_nano"] for line in self.lines)

    def _rows(self):
        for line in self.lines:
            used = line["usage"]
            seconds = (f"{used[name] / 1e9:.3f}" for name in ("allocated_ns", "executing_ns", "polling_ns"))
            yield (line["lease"][:8], line["package"], str(line["cores"]), str(used["calls"]), *seconds, _cost(line["total_nano"]))

    def __repr__(self):
        rows = [_COLUMNS, *self._rows(), ("total", *[""] * (len(_COLUMNS) - 2), _cost(self.total_nano))]
        widths = [max(len(row[column]) for row in rows) for column in range(len(_COLUMNS))]
        lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows)
        return "\n".join(lines)

    def _repr_html_(self):
        head = "".join(f'<th scope="col">{escape(name)}</th>' for name in _COLUMNS)
        body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in self._rows())
        total = f'<tr><th scope="row" colspan="{len(_COLUMNS) - 1}">total</th><td>{escape(_cost(self.total_nano))}</td></tr>'
        return f"<table><caption>Bill</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody><tfoot>{total}</tfoot></table>"


def _cost(nano):
    return f"{nano / 1e9:.9f}"
