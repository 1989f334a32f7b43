"""Pages on results: of tuning runs and of comparisons, each one HTML file that needs no network.

write_tuning_page(Path("tuned"))
write_comparison_page(Path("results.json"), Path("comparison.html"))
"""

from tilewright.report.comparison import comparison_markdown, write_comparison_page
from tilewright.report.tuning import REPORT, write_tuning_page

__all__ = ["REPORT", "comparison_markdown", "write_comparison_page", "write_tuning_page"]
