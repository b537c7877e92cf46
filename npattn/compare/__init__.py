"""Is an implementation right?  Its inputs and outputs, saved as a dump (derivations/dump_format.md), against this package in float64."""
from .check import check_dump
from .layout import DumpError
from .report import Report

__all__ = ["DumpError", "Report", "check_dump"]
