"""README's tables are true because they are made again here, and what it points to exists."""
import re
from pathlib import Path

from npattn.__main__ import COMMANDS, main
from npattn.catalogue import CATALOGUE

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def between(name):
    return README.split(f"<!-- {name} -->\n")[1].split("<!-- end -->")[0]


def test_the_table_of_mechanisms_is_what_the_command_prints(capsys):
    assert main(["list", "--markdown"]) == 0
    assert between("mechanisms") == capsys.readouterr().out


def test_set_up_is_two_commands():
    assert len(re.findall("^    ", between("setup"), re.M)) == 2


def test_links_lead_somewhere():
    links = [link for link in re.findall(r"\]\(([^)]+)\)", README) if "://" not in link]
    assert len(links) > len(CATALOGUE)
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_every_command_that_it_names_exists():
    named = set(re.findall(r"python -m npattn (\w+)", README))
    assert named and named <= set(COMMANDS)
