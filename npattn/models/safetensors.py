"""Reading and writing `.safetensors`: eight bytes of length, a JSON header, raw bytes.

    N        8 bytes, little endian
    header   N bytes of JSON: {name: {"dtype": "F32", "shape": [2, 3], "data_offsets": [begin, end]}, …, "__metadata__": {…}}
    data     the arrays, row by row, little endian, one after the other without gaps; offsets count from here

bfloat16, which NumPy does not have, is the upper half of a float32: it is widened to that, exactly.
"""
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy

TYPES = dict(F64="<f8", F32="<f4", F16="<f2", I64="<i8", I32="<i4", I16="<i2", I8="i1", U64="<u8", U32="<u4", U16="<u2", U8="u1", BOOL="?")
LONGEST = 100_000_000                                    # bytes of header, as in the original


class Entry(NamedTuple):
    path: Path
    dtype: str                                           # a key of TYPES, or BF16
    shape: tuple
    start: int                                           # in the file
    stop: int


class Tensors(Mapping):
    """Arrays by name, each read from the file when it is asked for, every time; `dict(tensors)` reads them all at once."""

    def __init__(self, entries):
        self.entries = entries

    def __getitem__(self, name):
        e = self.entries[name]
        raw = numpy.zeros(0, numpy.uint8)                                    # of no bytes no map can be made
        if e.stop > e.start:
            raw = numpy.memmap(e.path, numpy.uint8, "r", e.start, e.stop - e.start).view(numpy.ndarray)
        if e.dtype == "BF16":
            return numpy.left_shift(raw.view("<u2"), 16, dtype=numpy.uint32).view(numpy.float32).reshape(e.shape)
        return raw.view(TYPES[e.dtype]).reshape(e.shape)

    def __contains__(self, name):
        return name in self.entries                      # without reading it

    def __iter__(self):
        return iter(self.entries)

    def __len__(self):
        return len(self.entries)

    def about(self, name):
        """(shape, dtype) of an array, without reading it."""
        e = self.entries[name]
        return e.shape, numpy.dtype(TYPES.get(e.dtype, "<f4"))


def load(path):
    """The arrays of a file, of an index (`….safetensors.index.json`) of several files beside it, or of a folder that holds either.

    Of a folder that holds both the single file is read, as in Transformers.
    ValueError, with path and reason, for whatever is truncated, malformed, overlapping or of a type that NumPy cannot hold.
    """
    path = Path(path)
    if path.is_dir():
        found = [path / name for name in ("model.safetensors", "model.safetensors.index.json") if (path / name).exists()]
        if not found:
            raise ValueError(f"{path}: no model.safetensors and no model.safetensors.index.json in this folder")
        path = found[0]
    if path.suffix != ".json":
        return Tensors(read_header(path))
    files, entries = parsed(path, path.read_bytes()).get("weight_map"), {}
    beside = lambda file: isinstance(file, str) and re.fullmatch(r"[^/\\\0]+\.safetensors", file)
    if not isinstance(files, dict) or not all(map(beside, files.values())):
        raise ValueError(f"{path}: weight_map must give the name of a .safetensors file beside this one for every array")
    shards = {file: read_header(path.parent / file) for file in sorted(set(files.values()))}
    for name, file in files.items():
        if name not in shards[file]:
            raise ValueError(f"{path}: {name} should be in {file}, but is not")
        entries[name] = shards[file][name]
    return Tensors(entries)


def read_header(path):
    """{name: Entry} after checking that the file holds exactly what its header says."""
    size = path.stat().st_size
    with open(path, "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or not 2 <= length <= LONGEST or 8 + length > size:
            raise ValueError(f"{path}: no safetensors file, or a truncated one: {size} bytes cannot hold a header of {length}")
        header = parsed(path, file.read(length))
    metadata = header.pop("__metadata__", None)
    if metadata is not None and not (isinstance(metadata, dict) and all(isinstance(x, str) for x in metadata.values())):
        raise ValueError(f"{path}: malformed: __metadata__ must be an object of names and strings")
    entries = {name: entry(path, name, x, 8 + length) for name, x in header.items()}
    end = 8 + length
    for name, e in sorted(entries.items(), key=lambda pair: pair[1][3:]):
        if e.start != end:
            raise ValueError(f"{path}: {name} begins at byte {e.start}, not at {end}: the arrays {'overlap' if e.start < end else 'leave a gap'}")
        end = e.stop
    if end != size:
        raise ValueError(f"{path}: {'truncated' if end > size else 'too long'}: {size} bytes, where the header counts {end}")
    return entries


def parsed(path, text):
    try:
        x = json.loads(text.decode(), object_pairs_hook=unique)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: malformed JSON: {error}") from None
    if not isinstance(x, dict):
        raise ValueError(f"{path}: malformed: the JSON must be an object, not {type(x).__name__}")
    return x


def unique(pairs):
    names = [name for name, _ in pairs]
    if len(set(names)) < len(names):
        raise ValueError(f"{max(names, key=names.count)} is there twice")
    return dict(pairs)


def entry(path, name, x, begin):
    """One line of the header, checked."""
    whole = lambda n: isinstance(n, int) and not isinstance(n, bool) and n >= 0
    wholes = lambda y: isinstance(y, list) and all(map(whole, y))
    if not isinstance(x, dict) or not wholes(x.get("shape")) or not wholes(x.get("data_offsets")) or len(x["data_offsets"]) != 2:
        raise ValueError(f"{path}: malformed: {name} needs dtype, shape and two data_offsets, has {x!r:.200}")
    dtype, (start, stop) = x.get("dtype"), x["data_offsets"]
    if not isinstance(dtype, str) or dtype not in TYPES and dtype != "BF16":
        raise ValueError(f"{path}: {name} has the type {dtype!r}, which NumPy cannot hold; known: BF16, {', '.join(TYPES)}")
    count = 2 if dtype == "BF16" else numpy.dtype(TYPES[dtype]).itemsize
    for n in x["shape"]:
        count *= n
    if stop - start != count:
        raise ValueError(f"{path}: {name} {dtype} {tuple(x['shape'])} takes {count} bytes, but its data_offsets are {start} and {stop}")
    try:
        numpy.broadcast_to(numpy.uint8(), x["shape"])
    except (ValueError, OverflowError) as error:
        raise ValueError(f"{path}: {name} has a shape that NumPy cannot hold: {error}") from None
    return Entry(path, dtype, tuple(x["shape"]), begin + start, begin + stop)


def save(path, arrays, metadata=None):
    """Write a mapping of names to arrays of the types above (bfloat16 aside) as one file, which takes the place of an old one when it is whole.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save(folder + "/small.safetensors", {"x": numpy.arange(3.)})
    ...     print(load(folder + "/small.safetensors")["x"])
    [0. 1. 2.]
    """
    names, header, end = {numpy.dtype(kind): name for name, kind in TYPES.items()}, {}, 0
    for name, x in arrays.items():
        if not isinstance(name, str) or name == "__metadata__":
            raise ValueError(f"an array must be named by a string other than '__metadata__', not {name!r}")
        if not hasattr(x, "dtype") or x.dtype.newbyteorder("<") not in names:
            raise TypeError(f"{name}: {getattr(x, 'dtype', type(x).__name__)} cannot be written; known: {', '.join(map(str, names))}")
        header[name] = dict(dtype=names[x.dtype.newbyteorder("<")], shape=list(x.shape), data_offsets=[end, end + x.nbytes])
        end += x.nbytes
    text = json.dumps(({"__metadata__": metadata} if metadata else {}) | header).encode()
    text += b" " * (-len(text) % 8)                      # so that the arrays begin at a multiple of 8
    part = Path(f"{path}.part")                          # the arrays may be maps of the old file, which must not be written over
    try:
        with open(part, "wb") as file:
            file.write(len(text).to_bytes(8, "little") + text)
            for name, x in arrays.items():
                file.write(x.astype(x.dtype.newbyteorder("<"), copy=False).tobytes())
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)
