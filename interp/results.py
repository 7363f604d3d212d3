"""Labelled results on disk: netCDF through xarray, written atomically, compared by a canonical content hash.

A result is an :class:`xarray.Dataset` whose attrs hold its provenance. Files carry a format version and the
content hash, so that a foreign, truncated or damaged file is recognised before anything is computed from it.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import errno
import glob
import hashlib
import importlib.metadata
import json
import os
import secrets
import subprocess
from collections.abc import Hashable, Iterator, Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pandas as pd
import xarray as xr

from hooks.errors import CheckpointError, PhaselensError

__all__ = [
    "ResultsError",
    "atomic_path",
    "content_hash",
    "equal",
    "leftovers",
    "load",
    "provenance",
    "save",
    "to_csv",
]

FORMAT = 1
_FORMAT_ATTR = "phaselens_format"
_HASH_ATTR = "phaselens_content_hash"
_DTYPE_ATTR = "phaselens_dtype"
_HDF5_MAGIC = b"\x89HDF\r\n\x1a\n"
_VERSIONED = ("phaselens", "torch", "transformers", "transformer-lens")


class ResultsError(PhaselensError):
    """A file that is not a readable result, or a Dataset that cannot be stored as one."""


# ---- writing -----------------------------------------------------------------------------------------------


@contextlib.contextmanager
def atomic_path(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary path in the folder of `path`; it becomes `path` on success and is removed on failure.

    The temporary name keeps the suffix, so that writers that look at it behave as they would on `path`.

    Raises
    ------
    CheckpointError
        If the folder does not exist or cannot be written, or the disk is full.
    """
    target = Path(path)
    temporary = target.with_name(f".{target.stem[:80]}.{secrets.token_hex(6)}{target.suffix}")
    try:
        os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
    except OSError as error:
        raise _unwritable(target, error) from error
    try:
        yield temporary
        if target.is_dir():
            raise _unwritable(target, IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR)))
        temporary.replace(target)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM):
            raise _unwritable(target, error) from error
        raise
    finally:
        temporary.unlink(missing_ok=True)


def leftovers(path: str | os.PathLike[str]) -> list[Path]:
    """Temporary files of :func:`atomic_path` for a `path` with a stem of at most 80 characters.

    Those of a living writer are among them, so ask only where nobody else can be writing `path`.
    """
    target = Path(path)
    return sorted(target.parent.glob(f".{glob.escape(target.stem)}.{'[0-9a-f]' * 12}{target.suffix}"))


def save(dataset: xr.Dataset, path: str | os.PathLike[str]) -> Path:
    """Write a result as netCDF-4; the file appears whole or not at all.

    Parameters
    ----------
    dataset : xarray.Dataset
        Variables of bool, integer, float or text. Attrs must be text, numbers or flat lists of them;
        booleans are stored as integers.
    path : path-like
        The file; its folder must exist.

    Returns
    -------
    pathlib.Path
        `path`.

    Raises
    ------
    ResultsError
        Naming the variable or attr that netCDF cannot hold.
    CheckpointError
        If the folder cannot be written.
    """
    stored = _to_storable(dataset)
    stored.attrs[_FORMAT_ATTR] = FORMAT
    stored.attrs[_HASH_ATTR] = content_hash(dataset)
    with atomic_path(path) as temporary:
        stored.to_netcdf(
            temporary, engine="h5netcdf", encoding={n: {"_FillValue": None} for n in stored.variables}
        )
    return Path(path)


def to_csv(dataset: xr.Dataset, path: str | os.PathLike[str]) -> Path:
    """Write every value of a result as one row of a tidy CSV.

    Columns are ``variable``, the dims in the Dataset's order, the coordinates along them, and ``value``.
    A cell is empty where a variable lacks that dim; an undefined value is empty too; booleans are 0 and 1.

    Raises
    ------
    CheckpointError
        If the folder cannot be written.
    """
    axes = [str(d) for d in dataset.dims]
    extra = [str(n) for n in dataset.coords if n not in dataset.dims and dataset[n].dims]
    with atomic_path(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as out:
        pd.DataFrame(columns=["variable", *axes, *extra, "value"]).to_csv(
            out, index=False, lineterminator="\n"
        )
        for name in dataset.data_vars:
            _tidy(dataset, name, axes, extra).to_csv(out, index=False, header=False, lineterminator="\n")
    return Path(path)


# ---- reading -----------------------------------------------------------------------------------------------


def load(
    path: str | os.PathLike[str],
    *,
    max_bytes: int = 2**30,
    max_variables: int = 256,
) -> xr.Dataset:
    """Read a result written by :func:`save`.

    Parameters
    ----------
    path : path-like
        The file.
    max_bytes : int
        Largest file, and largest size of all values once in memory (compressed files can be far smaller).
    max_variables : int
        Largest number of variables, coordinates included.

    Raises
    ------
    ResultsError
        If it does not exist, is truncated or damaged, is not a phaselens result, exceeds a cap, or holds
        links that lead outside of the file.
    """
    path = Path(path)
    try:
        _check_file(path, max_bytes, max_variables)
        with xr.open_dataset(path, engine="h5netcdf", decode_times=False, mask_and_scale=False) as opened:
            dataset = _from_storable(opened.load())
    except PhaselensError:
        raise
    except Exception as error:  # h5py and xarray raise whatever a damaged file leads them to
        raise ResultsError(
            f"{path} cannot be read as a result ({_reason(error)}); it is truncated or damaged"
        ) from error
    expected = dataset.attrs.pop(_HASH_ATTR, "")
    dataset.attrs.pop(_FORMAT_ATTR)
    if content_hash(dataset) != expected:
        raise ResultsError(f"{path} is damaged: its values do not match the content hash stored with them")
    return dataset


def _check_file(path: Path, max_bytes: int, max_variables: int) -> None:
    """Refuse a file by what can be told without reading its values."""
    if not path.is_file():
        raise ResultsError(
            f"{path} {'is a folder' if path.is_dir() else 'does not exist'}; give a .nc file of results"
        )
    size = path.stat().st_size
    if size > max_bytes:
        raise ResultsError(f"{path} has {size} bytes, more than max_bytes={max_bytes}")
    with path.open("rb") as stream:
        if stream.read(len(_HDF5_MAGIC)) != _HDF5_MAGIC:
            raise ResultsError(f"{path} is not a netCDF-4 file; results are .nc files written by phaselens")
    with h5py.File(path, "r") as file:
        version = file.attrs.get(_FORMAT_ATTR)
        if version is None:
            raise ResultsError(f"{path} was not written by phaselens (no {_FORMAT_ATTR!r} in its attributes)")
        if int(np.asarray(version).ravel()[0]) != FORMAT:
            raise ResultsError(f"{path} has result format {version}; this version reads format {FORMAT}")
        if len(file) > max_variables:
            raise ResultsError(f"{path} has {len(file)} variables, more than max_variables={max_variables}")
        total = 0
        for name in file:
            kind = type(file.get(name, getlink=True))
            node = file[name] if kind is h5py.HardLink else None
            if not isinstance(node, h5py.Dataset) or node.is_virtual or node.external:
                raise ResultsError(
                    f"{path}: {name!r} is not a plain variable; groups, links and external data are refused"
                )
            total += int(np.prod(node.shape, dtype=object)) * node.dtype.itemsize
            if total > max_bytes:
                raise ResultsError(
                    f"{path} holds over {total} bytes of values, more than max_bytes={max_bytes}"
                )


# ---- identity ----------------------------------------------------------------------------------------------


def content_hash(dataset: xr.Dataset) -> str:
    """SHA-256 (hexadecimal) over names, dims, dtypes and values of all variables and coordinates.

    Independent of the order of variables, byte order, memory layout and attrs (which hold times and
    versions). −0.0 counts as 0.0, and all NaNs are alike.
    """
    digest = hashlib.sha256()
    for name in sorted(dataset.variables, key=str):
        values = np.asarray(dataset.variables[name].values)
        text = _is_text(values, name)
        header = {
            "name": str(name),
            "role": "coordinate" if name in dataset.coords else "variable",
            "dims": [str(d) for d in dataset.variables[name].dims],
            "shape": list(values.shape),
            "dtype": "text" if text else values.dtype.newbyteorder("=").name,
        }
        for block in (
            json.dumps(header, sort_keys=True).encode(),
            _text_bytes(values) if text else _bytes(values),
        ):
            digest.update(len(block).to_bytes(8, "little"))
            digest.update(block)
    return digest.hexdigest()


def equal(a: xr.Dataset, b: xr.Dataset) -> bool:
    """Whether two results have the same content (:func:`content_hash`), whatever their attrs."""
    return content_hash(a) == content_hash(b)


def _bytes(values: np.ndarray) -> bytes:
    if values.dtype.kind == "f":
        values = np.where(np.isnan(values), values.dtype.type(np.nan), values + values.dtype.type(0))
        # one bit pattern for all NaNs; −0.0 + 0.0 is 0.0
    return np.ascontiguousarray(values, dtype=values.dtype.newbyteorder("<")).tobytes()


def _text_bytes(values: np.ndarray) -> bytes:
    return json.dumps([str(v) for v in values.ravel()], ensure_ascii=True).encode()


def _is_text(values: np.ndarray, name: Hashable) -> bool:
    if values.dtype.kind in "biuf":
        return False
    if values.dtype.kind in "UT" or (
        values.dtype.kind == "O" and all(isinstance(v, str) for v in values.flat)
    ):
        return True
    raise ResultsError(
        f"variable {str(name)!r} has dtype {values.dtype}; results hold bool, int, float or text"
    )


# ---- netCDF and what it lacks ------------------------------------------------------------------------------


def _to_storable(dataset: xr.Dataset) -> xr.Dataset:
    """Copy of `dataset` in types that netCDF has; `_DTYPE_ATTR` remembers the others."""
    variables = {}
    for name, variable in dataset.variables.items():
        values = np.asarray(variable.values)
        attrs = _attrs(variable.attrs, f"variable {str(name)!r}")
        if _is_text(values, name):
            if any("\0" in v or not _encodable(v) for v in values.flat):
                raise ResultsError(
                    f"variable {str(name)!r} has text that netCDF cannot hold (NUL or lone surrogate)"
                )
            values = values.astype(object)
            attrs[_DTYPE_ATTR] = "text"
        elif values.dtype == np.float16:
            attrs[_DTYPE_ATTR] = "float16"  # netCDF has no half floats; every one is a float32
            values = values.astype(np.float32)
        elif values.dtype.kind == "f" and values.dtype.itemsize > 8:
            raise ResultsError(
                f"variable {str(name)!r} has dtype {values.dtype}; the widest float is float64"
            )
        variables[name] = (variable.dims, values, attrs)
    data = {n: v for n, v in variables.items() if n not in dataset.coords}
    coords = {n: v for n, v in variables.items() if n in dataset.coords}
    return xr.Dataset(data, coords, _attrs(dataset.attrs, "the Dataset"))


def _from_storable(stored: xr.Dataset) -> xr.Dataset:
    variables = {}
    for name, variable in stored.variables.items():
        attrs = {k: _plain(v) for k, v in variable.attrs.items()}
        values = np.asarray(variable.values)
        kind = attrs.pop(_DTYPE_ATTR, None)
        if kind == "text":
            values = values.astype(str) if values.size else np.zeros(values.shape, "<U1")
        elif kind == "float16":
            values = values.astype(np.float16)
        variables[name] = (variable.dims, values, attrs)
    data = {n: variables[n] for n in stored.data_vars}
    coords = {n: variables[n] for n in stored.coords}
    return xr.Dataset(data, coords, {k: _plain(v) for k, v in stored.attrs.items()})


def _attrs(attrs: Mapping[Any, Any], where: str) -> dict[str, Any]:
    """Attrs in types that netCDF has."""
    result = {}
    for key, value in attrs.items():
        plain = _plain(value)
        items = plain if isinstance(plain, list) else [plain]
        if (
            not items
            or not all(isinstance(i, (str, int, float)) for i in items)
            or len({type(i) for i in items}) > 2
        ):
            raise ResultsError(
                f"attr {key!r} of {where} is {value!r}; attrs are text, numbers or flat lists of them"
            )
        result[str(key)] = plain
    return result


def _plain(value: Any) -> Any:
    """Strip numpy types from an attr; booleans become integers, arrays and tuples lists."""
    if isinstance(value, (np.ndarray, list, tuple)):
        return [_plain(v) for v in value]
    if isinstance(value, (bool, np.bool_, np.integer)):
        return int(value)
    if isinstance(value, np.floating):
        return float(value)
    return str(value) if isinstance(value, str) else value


def _encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _tidy(dataset: xr.Dataset, name: Hashable, axes: list[str], extra: list[str]) -> pd.DataFrame:
    """Rows of one variable; index columns are broadcast over its own dims."""
    array = dataset[name]
    values = array.values
    columns: dict[str, Any] = {"variable": np.full(values.size, str(name))}
    for axis in axes:
        labels = dataset[axis] if axis in array.dims else None
        columns[axis] = (
            "" if labels is None else labels.broadcast_like(array).transpose(*array.dims).values.ravel()
        )
    for coord in extra:
        along = set(dataset[coord].dims) <= set(array.dims)
        wide = dataset[coord].broadcast_like(array).transpose(*array.dims).values.ravel() if along else ""
        columns[coord] = wide
    columns["value"] = (values.astype(np.int8) if values.dtype == bool else values).ravel()
    return pd.DataFrame(columns)


# ---- provenance --------------------------------------------------------------------------------------------


def provenance(model: Any, task: Any, seed: int, **extra: Any) -> dict[str, Any]:
    """Attrs that say how a result came about.

    Parameters
    ----------
    model : hooks.sites.HookedModel
        Its name and :meth:`content_hash` are stored, and what changes it now (forced gates, hooks set around
        the measurement) as ``altered``, which the name then ends in.
    task : Task or None
        Its ``describe()`` is stored as JSON; None for results that need no prompts.
    seed : int
        The seed of the prompts.
    **extra
        Further attrs, of types that netCDF can hold.

    Returns
    -------
    dict
        ``model model_hash task seed``, ``altered`` (where the model was not measured as it is), versions, the
        git commit of the checkout that holds the package (if any), ``created`` (UTC), and `extra`.
    """
    from interp.altered import alterations  # loads torch, which a page of saved results does without

    changed = alterations(model)
    attrs: dict[str, Any] = {
        "model": f"{model.name}, {changed}" if changed else str(model.name),
        "model_hash": model.content_hash(),
        **({"altered": changed} if changed else {}),
        "task": "" if task is None else json.dumps(task.describe(), sort_keys=True),
        "seed": int(seed),
        "created": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
    }
    for package in _VERSIONED:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            attrs[f"version_{package.replace('-', '_')}"] = importlib.metadata.version(package)
    commit = _git_commit()
    return attrs | ({"git_commit": commit} if commit else {}) | _attrs(extra, "the provenance")


def _git_commit() -> str:
    """Commit of the checkout that holds this package, or "" (installed package, no git)."""
    here = Path(__file__).resolve().parent
    command = ["git", "-C", str(here), "rev-parse", "HEAD"]
    if "site-packages" in here.parts:
        return ""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=5, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:200]


def _unwritable(target: Path, error: OSError) -> CheckpointError:
    folder = target.parent
    if not folder.is_dir():
        return CheckpointError(
            f"{target} cannot be written: {folder} is not a folder; create it or choose another"
        )
    return CheckpointError(
        f"{target} cannot be written: {error.strerror}; choose a writable folder with space"
    )
