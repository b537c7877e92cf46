"""Why a result is wrong: the convention, or the two, that give the same numbers."""
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from . import layer_report
from .case import case_of, changed, computed, is_result
from .check import compare, right_outputs
from .diagnosis import VERDICTS, Diagnosis, explanations
from .files import load
from .hypotheses import HYPOTHESES
from .layer import is_layer
from .layout import DumpError
from .measure import LEVELS, precision
from .own import words as small_heads
from .own import wrong_heads
from .read import fitting, name_in, read
from .rounding import recognised
from .search import Search, Subject
from .words import join, picture


def diagnose(path_or_mapping, mechanism=None, layout=None, *, pairs=True, seconds=50, progress=lambda done, of: None):
    """Whether the outputs and gradients in a dump are right and, if not, why: a Diagnosis.

    path_or_mapping, mechanism, layout: as for check_dump; without a mechanism, given or stored, all that fit the arrays are tried.
    pairs: whether two hypotheses are tried together where no single one explains, for as many `seconds` at most; progress(done, of)
    is called between them.  Raises DumpError, a ValueError of one line, for what cannot be used.
    """
    with np.errstate(all="ignore"):                      # what a wrong convention makes of numbers may well overflow
        return best(load(path_or_mapping), mechanism, layout, pairs, seconds, progress)


def best(arrays, mechanism, layout, pairs, seconds, progress):
    """The Diagnosis of arrays by key, under the mechanism that explains them best."""
    if is_layer(arrays, mechanism or name_in(arrays)):
        return layer_report.judged(arrays, pairs)
    dumps = candidates(arrays, mechanism, layout)
    found = [judged(dump, pairs and len(dumps) == 1, seconds, progress) for dump in dumps]
    if pairs and len(dumps) > 1 and not any(one.right or one.explanations for one in found):
        found = [judged(dump, True, seconds / len(dumps), progress) for dump in dumps]
    first = min(found, key=lambda one: (VERDICTS.index(one.verdict), len(one.explanations[0].names) if one.explanations else 0))
    return replace(first, others=tuple((one.report.mechanism, one.verdict) for one in found if one is not first))


def candidates(arrays, mechanism, layout):
    """The Dump; several where no mechanism is named, one for each that the arrays fit."""
    if mechanism or "mechanism" in arrays:
        return [read(arrays, mechanism, layout)]
    dumps = []
    for name in fitting({key: x for key, x in arrays.items() if key != "layout"}):
        try:
            dumps.append(read(arrays, name, layout))
        except DumpError:
            pass                                         # another mechanism's options are missing
    return dumps or [read(arrays, None, layout)]         # which says what is missing


def judged(dump, pairs, seconds, progress):
    """The Diagnosis of a Dump."""
    right = right_outputs(dump)
    report = compare(dump, right)
    case = case_of(dump)
    blind = tuple(row.name for row in HYPOTHESES if not row.back and row.concerns(case.mechanism) and row.meant(case)
                  and not row.when(case))
    if report.right:
        exact = max(row.error.relative for row in report.rows) <= LEVELS["float64"]
        coarse = [name for name, x in dump.outputs.items() if precision(x, right[name], dump.types[name]) == report.precision]
        some = f"the values of {join(coarse)}" if len(coarse) < len(dump.outputs) else ""
        return Diagnosis("right" if exact else VERDICTS[1], report.precision, report, rounding="" if exact else some, blind=blind)
    subject = Subject(case, dump.axes, right, max(row.level for row in report.rows), {row.name: row.level for row in report.rows})
    search = Search(subject, progress)
    done = lambda verdict, precision=report.precision, **more: Diagnosis(verdict, precision, report, blind=blind, tried=search.tried,
                                                                         **more)

    hidden = tuple(small_heads(report.rows, dump.outputs))
    if all(row.near for row in report.rows):             # what the measure of an explanation lets pass it cannot explain
        return done("unexplained", picture=hidden)
    fits = search.single()
    if fits:
        return done("explained", explanations=explanations(subject, fits))
    seen = recognised(subject, case, right)
    if seen:
        rows = tuple(replace(row, level=max(row.level, row.error.relative)) for row in report.rows)
        heads = wrong_heads(dump.problem, rows, right, {row.name: subject.real(row.name) for row in rows}, seen.model.precision)
        report = replace(report, rows=tuple(replace(row, heads=heads.get(row.name, ())) for row in rows))
        if heads:
            return replace(done("unexplained"), report=report, picture=tuple(small_heads(report.rows, dump.outputs)))
        return Diagnosis(VERDICTS[1], seen.model.precision, report, rounding=seen.model.words, blind=blind, tried=search.tried)
    for fit in search.near(0.03)[:3]:
        base = changed(case, fit.rows)
        seen = recognised(subject, base, computed(base, subject.back))
        if seen:
            return done("explained", seen.model.precision, explanations=explanations(subject, [fit], seen.model.words))
    complete = True
    if pairs:
        fits, complete = search.pairs(seconds)
        if fits:
            return done("explained", explanations=explanations(subject, fits), complete=complete)
    return done("unexplained", partial=partly(subject, report), picture=(*picture(subject), *hidden), complete=complete)


def partly(subject, report):
    """What explains one wrong output, where nothing explains all of them; of gradients only what goes wrong on the way back."""
    wrong = [row.name for row in report.rows if not row.right]
    found = []
    for name in wrong if len(wrong) > 1 else ():
        part = subject.only([name])
        search = Search(part)
        if not is_result(name):
            search.rows = [row for row in search.rows if row.back]
        found += explanations(part, search.single(), leaves=tuple(other for other in wrong if other != name))[:2]
    return tuple(found)


# --- from a test-suite -------------------------------------------------------------------------------------------

def explain(mechanism, inputs, outputs=None, *, layout=None, pairs=True, **options):
    """What explains wrong outputs: a list of Explanations, simplest first; empty if they are right, or if nothing explains them.

    mechanism: a name, None to try all that fit.  inputs, outputs: mappings of names to arrays of whatever library, as in a dump
    (derivations/dump_format.md); or one of both in `inputs`, or the path of a file.  options: scale, window, use_qk_l2norm, … as
    keywords, in place of opt.scale and so on in `inputs`.
    """
    return list(diagnose(together(inputs, outputs, options), mechanism, layout, pairs=pairs).explanations)


def assert_matches(mechanism, inputs, outputs=None, *, layout=None, pairs=True, **options):
    """AssertionError, with the report and what explains it as its message, unless the outputs are right to within rounding.
    Arguments as for `explain`.
    """
    diagnosis = diagnose(together(inputs, outputs, options), mechanism, layout, pairs=pairs)
    assert diagnosis.right, f"\n{diagnosis}"


def together(inputs, outputs, options):
    if not isinstance(inputs, Mapping):
        inputs = load(inputs)
    return {**inputs, **(outputs or {}), **{f"opt.{name}": np.asarray(x) for name, x in options.items() if x is not None}}
