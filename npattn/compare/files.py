"""The arrays of a dump by key: from an .npz or .safetensors file, from a folder of .npy files, or from a mapping of arrays of
whatever library.

Pickled objects are refused, never loaded.
"""
import json
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from ..models import safetensors
from .layout import DumpError


def load(source):
    """The arrays by key; DumpError for what cannot be read."""
    if isinstance(source, Mapping):
        return {str(key): host_array(key, x) for key, x in source.items() if x is not None}
    if isinstance(source, (str, Path)) and Path(source).is_dir():
        return folder(Path(source))
    if isinstance(source, (str, Path)) and Path(source).suffix == ".safetensors":
        return tensors(Path(source))
    try:
        z = np.load(source, allow_pickle=False)
    except FileNotFoundError:
        raise DumpError(f"{source}: there is no such file") from None
    except Exception as error:                           # whatever zipfile and NumPy make of a broken file
        raise DumpError(f"{source} is no .npz file that can be read{because(error)}") from None
    if not isinstance(z, np.lib.npyio.NpzFile):
        raise DumpError(f"{source} is a single array, not an .npz of named arrays")
    with z:
        return {key: entry(source, key, lambda: z[key]) for key in z.files}


def folder(path):
    """One file for each key: q.npy, opt.scale.npy, …"""
    files = sorted(path.glob("*.npy"))
    if not files:
        raise DumpError(f"{path} is a folder without .npy files")
    return {file.stem: entry(path, file.stem, lambda: np.load(file, allow_pickle=False)) for file in files}


def tensors(path):
    """Arrays under their names; strings and options may stand in the metadata, where everything is text."""
    try:
        arrays = dict(safetensors.load(path))
        with open(path, "rb") as file:
            about = json.loads(file.read(int.from_bytes(file.read(8), "little"))).get("__metadata__") or {}
    except FileNotFoundError:
        raise DumpError(f"{path}: there is no such file") from None
    except (OSError, ValueError) as error:
        raise DumpError(f"{path} cannot be read{because(error)}") from None
    arrays |= {key: np.array(about[key]) for key in ("mechanism", "layout") if key in about}
    return arrays | {key: option(key, value) for key, value in about.items() if key.startswith("opt.")}


def option(key, value):
    try:
        return np.array(json.loads(value.lower()))
    except ValueError:
        raise DumpError(f"{key} in the metadata must be a number, true or false, not {value!r}") from None


def entry(source, key, get):
    try:
        x = get()
    except Exception as error:
        raise DumpError(f"{source}: {key} cannot be read{because(error)}") from None
    if not isinstance(x, np.ndarray):
        raise DumpError(f"{source}: {key} is no array")
    return x


def host_array(key, x):
    """An array of NumPy from whatever converts to one: by its own way, or by DLPack; bfloat16 is widened, and gradients are left behind."""
    try:
        x = x.detach().cpu() if hasattr(x, "detach") else x                  # PyTorch
        if str(getattr(x, "dtype", "")).endswith("bfloat16"):                # which NumPy does not have
            x = x.float() if hasattr(x, "float") else x.astype(sys.modules["mlx.core"].float32 if type(x).__module__.startswith("mlx")
                                                               else "float32")
        x = np.from_dlpack(x) if hasattr(x, "__dlpack__") and not hasattr(x, "__array__") else np.asarray(x)
    except Exception as error:                           # whatever the other library raises
        raise DumpError(f"{key} cannot be had as a NumPy array{because(error)}") from None
    if x.dtype == object:
        raise DumpError(f"{key} holds objects, not numbers")
    return x


def because(error):
    line = " ".join(str(error).split())
    return ": it is no .npz, or holds pickled objects, which are never loaded" if "pickle" in line else f": {line}" if line else ""
