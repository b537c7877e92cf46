"""`python -m npattn pitfalls`: the table of hypotheses, as documentation."""
import json as text

from ..catalogue import CATALOGUE
from .hypotheses import TABLE
from .layer import NAME


def pitfalls_command(json=False):
    if json:
        print(text.dumps([dict(theme=theme, **as_dict(row)) for theme, rows in TABLE.items() for row in rows], indent=1))
        return 0
    for theme, rows in TABLE.items():
        print(f"{theme}\n{'-' * len(theme)}\n")
        for row in rows:
            if row.name.split(" of ")[-1].split(" and ")[0] in ("16", "32", "128"):
                continue                                 # the same with another size: 64 stands for all
            sizes = ", or of 16, 32, 128" if " of 64" in row.name else ""
            print(f"{row.name}{sizes}\n    {row.says}\n    -> {row.remedy}\n    shown by: {row.shows}\n    {concerned(row)}\n")
    print(f"{sum(map(len, TABLE.values()))} differences. `python -m npattn compare DUMP` tries each of them alone, and two together.")
    return 0


def mechanisms(row):
    return [name for name, mechanism in CATALOGUE.items() if row.concerns(mechanism)] + [NAME] * row.concerns(NAME)


def concerned(row):
    names = mechanisms(row)
    return "in: every mechanism" if len(names) == len(CATALOGUE) else f"in: {', '.join(names)}"


def as_dict(row):
    return dict(name=row.name, says=row.says, remedy=row.remedy, shows=row.shows, gradients_only=row.back, mechanisms=mechanisms(row))
