"""Is an implementation right, and if not, why?  Its inputs and outputs, saved as a dump (derivations/dump_format.md), against this
package in float64.
"""
from .check import check_dump
from .diagnosis import Diagnosis, Explanation
from .explain import assert_matches, diagnose, explain
from .layout import DumpError
from .report import Report

__all__ = ["Diagnosis", "DumpError", "Explanation", "Report", "assert_matches", "check_dump", "diagnose", "explain"]
