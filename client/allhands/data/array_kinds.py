"""Results in the kind of array that the caller gave: a new tensor for a tensor, bytes for bytes.

Libraries are found among the modules that the caller's array has imported, and imported nowhere.
"""

import sys
from array import array
from typing import Any

import numpy as np
from numpy.typing import NDArray


def restore_kind(made: NDArray[Any], given: object) -> Any:
    """Return a new array as one of the kind of `given`; `made` belongs to the result then.

    Kinds are those of PyTorch, pandas, polars, PyArrow, xarray and of libraries of the array API
    standard, such as JAX, and bytes, bytearray, memoryview and arrays of the module array. Labels
    are kept where the shape is. Anything else, such as a memory map, gets the NumPy array.
    """
    if isinstance(given, np.ndarray | np.generic):
        return made
    match given:
        case bytes() | bytearray():
            return type(given)(made.tobytes())
        case memoryview():
            return made.data
        case array():
            return array(given.typecode, made.tobytes())
    if (find_namespace := getattr(given, "__array_namespace__", None)) is not None:
        return find_namespace().asarray(made)
    name = type(given).__module__.partition(".")[0]
    library: Any = sys.modules.get(name)
    restore = {
        "torch": _restore_tensor,
        "pandas": _restore_pandas,
        "polars": _restore_polars,
        "pyarrow": _restore_arrow,
        "xarray": _restore_xarray,
    }.get(name)
    return made if restore is None else restore(library, made, given)


def _restore_tensor(torch: Any, made: NDArray[Any], given: Any) -> Any:
    return torch.from_numpy(made).to(given.device)


def _restore_pandas(pandas: Any, made: NDArray[Any], given: Any) -> Any:
    if isinstance(given, pandas.DataFrame) and made.ndim == 2:
        index = given.index if made.shape == given.shape else None
        columns = given.columns if made.shape[1] == given.shape[1] else None
        return pandas.DataFrame(made, index=index, columns=columns)
    if made.ndim != 1:
        return made
    if isinstance(given, pandas.Series):
        index = given.index if made.shape == given.shape else None
        return pandas.Series(made, index=index, name=given.name)
    return pandas.Index(made, name=given.name) if isinstance(given, pandas.Index) else made


def _restore_polars(polars: Any, made: NDArray[Any], given: Any) -> Any:
    if isinstance(given, polars.DataFrame) and made.shape[1:] == given.shape[1:]:
        return polars.DataFrame(made, schema=given.columns)
    return polars.Series(given.name, made) if isinstance(given, polars.Series) else made


def _restore_arrow(pyarrow: Any, made: NDArray[Any], given: Any) -> Any:
    if isinstance(given, pyarrow.ChunkedArray):
        return pyarrow.chunked_array([made])
    return pyarrow.array(made) if isinstance(given, pyarrow.Array) and made.ndim == 1 else made


def _restore_xarray(xarray: Any, made: NDArray[Any], given: Any) -> Any:
    if not isinstance(given, xarray.DataArray | xarray.Variable) or made.ndim != given.ndim:
        return made
    if made.shape == given.shape:
        return given.copy(data=made)
    return type(given)(dims=given.dims, data=made)
