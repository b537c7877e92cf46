"""The pages: each passes stock doctest, the index lists all of them, every mechanism has one, and none hides a number or runs long."""
import doctest
import re
from pathlib import Path

import pytest

from npattn.catalogue import CATALOGUE

FOLDER = Path(__file__).parent.parent / "derivations"
PAGES = sorted(path for path in FOLDER.glob("*.md") if path.name != "README.md")
COURSE = [path for path in PAGES if re.match(r"\d\d", path.name)]
INDEX = (FOLDER / "README.md").read_text(encoding="utf-8")


def named(paths):
    return dict(argvalues=paths, ids=[path.stem for path in paths])


@pytest.mark.parametrize("page", **named(PAGES))
def test_stock_doctest_passes(page):
    result = doctest.testfile(str(page), module_relative=False, encoding="utf-8")
    assert result.failed == 0


def test_there_are_pages():
    assert len(COURSE) >= 15


@pytest.mark.parametrize("page", **named(COURSE))
def test_a_page_is_short_and_computes_what_it_says(page):
    text = page.read_text(encoding="utf-8")
    examples = doctest.DocTestParser().get_examples(text)
    assert len(text.splitlines()) <= 160
    assert sum(len(example.want) > 0 for example in examples) >= 5
    assert not any(example.options for example in examples)                  # no flag, so nothing is skipped or elided
    assert not any(example.want.strip() == "True" for example in examples)   # numbers, not a verdict
    assert re.match(r"# \d+b?\. .+\n\n\*\*Statement\.\*\*", text) and "Guarded by `tests/" in text


@pytest.mark.parametrize("page", **named([*PAGES, FOLDER / "README.md"]))
def test_links_and_tests_that_a_page_names_exist(page):
    text = page.read_text(encoding="utf-8")
    names = [link for link in re.findall(r"\]\(([^)#]+)[^)]*\)", text) if "://" not in link]
    assert [name for name in names if not (FOLDER / name).exists()] == []
    assert [name for name in re.findall(r"tests/\w+\.py", text) if not (FOLDER.parent / name).exists()] == []


@pytest.mark.parametrize("page", **named(COURSE))
def test_what_guards_a_page_is_about_it(page):
    """Each test that it names runs over the whole catalogue or all framework data, or imports something from npattn that the page speaks of."""
    text = page.read_text(encoding="utf-8")
    words = set(re.findall(r"\w+", text[:text.rindex("Guarded by")]))
    for guard in re.findall(r"tests/\w+\.py", text[text.rindex("Guarded by"):]):
        test = (FOLDER.parent / guard).read_text(encoding="utf-8")
        imported = {name for names in re.findall(r"from npattn[\w.]* import (.+)", test) for name in re.findall(r"\w+", names)}
        assert imported & words or re.search("(in|,) (CATALOGUE|PROVENANCE)|ROW = CATALOGUE", test), f"{guard}: {', '.join(sorted(imported))}"
        if "mutations" in guard:                         # one file breaks forms, the other gradients
            assert ("gradient" in guard) == ("_vjp" in text)


def test_the_index_lists_every_page_and_no_other():
    links = re.findall(r"\]\(([^)/]+\.md)\)", INDEX)
    assert sorted(links) == sorted(path.name for path in PAGES)              # each once
    assert [link for link in links if link[0].isdigit()] == [path.name for path in COURSE]       # in the order of their numbers


@pytest.mark.parametrize("row", CATALOGUE.values(), ids=CATALOGUE)
def test_every_mechanism_has_a_page_that_names_it(row):
    assert row.page, f"{row.name} has no page in the catalogue"
    assert row.name in (FOLDER / f"{row.page}.md").read_text(encoding="utf-8")
