"""Fusion: which nodes of a graph run in which layer of an engine, what was removed, what each layer takes."""

from alula.fusion.compare import Change, Comparison, as_json, compare, facts, kinds
from alula.fusion.page import comparison_page, page
from alula.fusion.report import report_of, to_json
from alula.fusion.text import removed_table, short, summary, table
from alula.fusion.values import Attention, Layer, Listing, Removed, Report, Value

__all__ = [
    "Attention",
    "Change",
    "Comparison",
    "Layer",
    "Listing",
    "Removed",
    "Report",
    "Value",
    "as_json",
    "compare",
    "comparison_page",
    "facts",
    "kinds",
    "page",
    "removed_table",
    "report_of",
    "short",
    "summary",
    "table",
    "to_json",
]
