"""The HTML report: run folders → one page that opens offline, with figures to hover and zoom."""

from hcfl.report.page.write_page import write

__all__ = ["write"]
