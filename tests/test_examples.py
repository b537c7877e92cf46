"""Every example runs as a script, and asserts what it claims itself."""
import os
import runpy
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parent.parent / "examples").glob("*.py"))
SHORT = {"train_associative_recall.py": ["--steps", "3"]}            # what takes minutes has a short run


def test_there_are_examples():
    assert EXAMPLES


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example(path, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(sys, "argv", [str(path), *SHORT.get(path.name, [])])
    monkeypatch.chdir(tmp_path)                                      # an example needs nothing from the folder that it is run in
    runpy.run_path(str(path), run_name="__main__")
    assert capsys.readouterr().out and not os.listdir(tmp_path)      # it says something, and leaves nothing behind
