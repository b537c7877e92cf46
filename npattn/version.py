"""The version, which setup.cfg alone states."""
import configparser
from importlib import metadata
from pathlib import Path


def version():
    """From the setup.cfg of the tree that this file is in, or, where it is installed, from what the installer noted of it.

    The tree goes first: another copy may be installed.
    """
    tree = configparser.ConfigParser()
    tree.read(Path(__file__).parent.parent / "setup.cfg", encoding="utf-8")
    if tree.get("metadata", "name", fallback="") == "npattn":
        return tree.get("metadata", "version")
    return metadata.version("npattn")
