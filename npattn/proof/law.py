"""A law, what comes of applying it to a mechanism, and why it may not apply."""
import inspect
from dataclasses import dataclass
from typing import Callable

from .material import gates
from .measure import Distance, distance, worst
from .plain import definition_of


@dataclass(frozen=True)
class Law:
    """`cases(row, options)` yields (what, got, wanted), or a Distance; `why_not(row, options)` says why the law does not apply, or nothing."""
    name: str
    cases: Callable
    tolerance: float
    why_not: Callable = lambda row, options: ""

    @property
    def says(self):
        """What must hold, as text: how `cases` describes itself."""
        return " ".join(inspect.getdoc(self.cases).split("\n\n")[0].split())

    def worst(self, row, options):
        """The largest distance over the cases of one setting."""
        return worst(case if isinstance(case, Distance) else distance(*case) for case in self.cases(row, options))

    def holds(self, found):
        return found.error <= self.tolerance


@dataclass(frozen=True)
class Verdict:
    """One law on one mechanism; `error` is None where it does not apply, `what` then says why."""
    law: str
    error: float | None
    tolerance: float
    what: str
    ok: bool


def settings(row):
    """The options to run a mechanism with: the catalogue's, then its variants."""
    return [dict(row.options, **variant) for variant in ({}, *row.variants)]


def judge(law, row):
    """The law over all settings of a mechanism.  A form that raises is a form that fails."""
    reasons, found = [], []
    for options in settings(row):
        reason = law.why_not(row, options)
        if reason:
            reasons.append(reason)
            continue
        try:
            d = law.worst(row, options)
        except Exception as error:
            d = Distance(float("inf"), f"{type(error).__name__}: {error}")
        found.append(Distance(d.error, d.what + (f" ({', '.join(f'{n}={v}' for n, v in options.items())})" if options else "")))
    if not found:
        return Verdict(law.name, None, law.tolerance, reasons[0], True)
    d = worst(found)
    return Verdict(law.name, d.error, law.tolerance, d.what, law.holds(d))


# --- why a law does not apply: a reason, or nothing -------------------------------------------------------------------

def causal_only(row, options):
    return "" if options.get("causal", row.causal) else "not causal: earlier tokens see later ones"


def rational(row, options):
    return "" if row.exact else "not rational in its inputs"


def resettable(row, options):
    return "has no gate" if not gates(row) else "" if row.forgets else "predicts from what the reset erases"


def analytic(row, options):
    return "" if row.analytic else "not analytic: central differences instead"


def not_analytic(row, options):
    return "" if not row.analytic else "analytic: the complex step is sharper"


def with_reductions(row, options):
    return "" if row.reductions and options == row.options else "reduces to no simpler mechanism"


def scaled(row, options):
    return "" if "scale" in inspect.signature(row.module.loop).parameters else "has no scale: it would cancel"


def defined(row, options):
    return "" if definition_of(row) else f"npattn/proof/plain/{row.family}.py does not define it"


def with_master(row, options):
    return recurrent(row, options) or (row.master if isinstance(row.master, str) else "")


def recurrent(row, options):
    return "" if row.recurrent else "a cache keeps every token"
