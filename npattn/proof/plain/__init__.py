"""Every mechanism once more, as plainly as it can be said: what all its forms are held against.

The forms of a mechanism share code, and a mistake in it makes them agree on the wrong thing.  Nothing here is shared with them: no core, no
state that is carried from token to token.  Slow, and for one head: q, k, v and gates are arrays of rows, the state is its arrays, `scale`
a number.  Nothing is converted, so fractions stay fractions.

    FAMILY.py holds one function a mechanism, of its name:  NAME(q, k, v, *, …, scale, state) -> rows of o, final state
"""
import importlib


def definition_of(row):
    """The plain definition of a mechanism of the catalogue, or None."""
    try:
        family = importlib.import_module(f"{__name__}.{row.family}")
    except ModuleNotFoundError as error:
        if error.name != f"{__name__}.{row.family}":
            raise
        return None
    return getattr(family, row.name, None)
