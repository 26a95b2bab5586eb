"""The HTML report: run folders → one page that opens offline, with figures to hover and zoom."""

from hcfl.report.page.compose import write

__all__ = ["write"]
