"""Datatypes: handles of layouts, with constructors of derived ones."""

from collections.abc import Sequence
from typing import Any, Self

import numpy as np

from allhands.mpi import constants, errors
from allhands.mpi.attributes import HasAttributes
from allhands.mpi.constants import (
    COMBINER_DARRAY,
    COMBINER_DUP,
    COMBINER_F90_COMPLEX,
    COMBINER_F90_INTEGER,
    COMBINER_F90_REAL,
    COMBINER_NAMED,
    COMBINER_STRUCT,
    COMBINER_SUBARRAY,
    COMBINER_VALUE_INDEX,
    ERR_ARG,
    ERR_TYPE,
    MAX_OBJECT_NAME,
    ORDER_C,
    TYPECLASS_COMPLEX,
    TYPECLASS_INTEGER,
    TYPECLASS_LOGICAL,
    TYPECLASS_REAL,
    UNDEFINED,
)
from allhands.mpi.datatypes import distributions, layouts
from allhands.mpi.datatypes.basics import BY_NAME, PAIRS, Basic
from allhands.mpi.datatypes.layouts import Layout, make_basic, place
from allhands.mpi.datatypes.packing import Packing
from allhands.mpi.handles import Handle
from allhands_proto.quick_dataclass import dataclass

Params = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Making:
    """How a datatype was made."""

    combiner: int
    params: Params
    old: "tuple[Datatype, ...]" = ()


_COMBINERS = {
    value: name.removeprefix("COMBINER_")
    for name, value in vars(constants).items()
    if name.startswith("COMBINER_")
}
"""Names of the ways to make a datatype."""
NAMED = Making(COMBINER_NAMED, {})
_F90 = (COMBINER_F90_INTEGER, COMBINER_F90_REAL, COMBINER_F90_COMPLEX)
_FIELDS = frozenset(
    [
        *("size", "extent", "lb", "ub", "true_lb", "true_ub", "true_extent"),
        *("is_contiguous", "base", "layout"),
    ]
)


class Datatype(Handle, HasAttributes, Packing):
    """The elements of a buffer; never changed once it is made."""

    layout: Layout
    size: int
    """Bytes of data of an element."""
    lb: int
    ub: int
    extent: int
    """Bytes from one element to the next."""
    true_lb: int
    true_ub: int
    true_extent: int
    is_contiguous: bool
    """Whether elements lie end to end, without gaps."""
    is_predefined: bool = True
    """Whether it is of the standard; null is so too."""
    base: "np.dtype[Any] | None"
    """What the elements consist of in NumPy; None: of various things, or of none there."""
    numbers: "np.dtype[Any] | None" = None
    """Elements of NumPy that lie in memory as these do, one for one; read by the native core."""
    _making: Making
    _basic: Basic | None
    _token: object | None

    def __new__(cls, datatype: "Datatype | None" = None) -> Self:
        self = super().__new__(cls, datatype)
        if datatype is None:
            self._token = None
        return self

    def __getattr__(self, name: str) -> Any:
        if name in _FIELDS:
            raise errors.make_error(ERR_TYPE, "the datatype is null")
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    @classmethod
    def _make(
        cls, layout: Layout, making: Making, basic: Basic | None = None, name: str = ""
    ) -> Self:
        self = cls.__new__(cls)
        self._token = object()
        self._making = making
        self.is_predefined = making.combiner == COMBINER_NAMED or making.combiner in _F90
        self._basic = basic
        self._name = name
        self.layout = layout
        self.size, self.lb, self.extent = layout.size, layout.lb, layout.extent
        self.ub = layout.lb + layout.extent
        self.true_lb, self.true_extent = layout.measure_data()
        self.true_ub = self.true_lb + self.true_extent
        self.is_contiguous = layout.is_contiguous
        code = layout.basics[0][0] if len(layout.basics) == 1 else ""
        self.base = BY_NAME[code].dtype if code in BY_NAME else None
        is_one = self.base is not None and self.base.itemsize == self.size and not self.true_lb
        self.numbers = self.base if is_one and self.is_contiguous else None
        return self

    def _identity(self) -> object:
        return self._token

    def _make_null(self) -> None:
        self.__dict__.clear()
        self._token = None

    def _check_attributes(self) -> None:
        self._check()

    def _check(self) -> None:
        if self._token is None:
            raise errors.make_error(ERR_TYPE, "the datatype is null")

    def _reduce(self) -> Any:
        making = self._making
        return _rebuild, (type(self), making.old, making.combiner, making.params)

    # ------------------------------------------------------------ size

    def Get_size(self) -> int:
        """Return the bytes of data of an element."""
        return self.size

    def Get_extent(self) -> tuple[int, int]:
        """Return the lower bound and the extent, in bytes."""
        return self.lb, self.extent

    def Get_true_extent(self) -> tuple[int, int]:
        """Return the lower bound and the extent of the data itself, in bytes."""
        return self.true_lb, self.true_extent

    def count_elements(self, nbytes: int) -> int:
        """Return how many elements so many bytes are; UNDEFINED: a part of one is left."""
        if not self.size:
            return UNDEFINED if nbytes else 0
        count, rest = divmod(nbytes, self.size)
        return UNDEFINED if rest else count

    def measure_elements(self, nbytes: int) -> int:
        """Return how many basic elements so many bytes are; UNDEFINED: a part of one is left."""
        if not self.size:
            return UNDEFINED if nbytes else 0
        whole, rest = divmod(nbytes, self.size)
        number = whole * self.layout.basic_count
        for code, count in self.layout.basics:
            size = BY_NAME[code].size
            number += min(count, rest // size)
            if rest < size * count:
                return UNDEFINED if rest % size else number
            rest -= size * count
        return number

    # ------------------------------------------------------------ derived datatypes

    def _derive(self, layout: Layout, combiner: str, **params: Any) -> Self:
        number = getattr(constants, f"COMBINER_{combiner}")
        return self._make(layout, Making(number, params, (self._original(),)))

    def _original(self) -> "Datatype":
        """Return the handle to keep of this datatype: of a constant the constant itself."""
        if self._builtin and not self._is_constant:
            return find_constant(self._builtin)
        return self if self._is_constant else Datatype(self)

    def Dup(self) -> Self:
        """Return a datatype of the same layout and attributes."""
        self._check()
        made = self._derive(self.layout, "DUP")
        self.copy_attributes_to(made)
        return made

    Create_dup = Dup

    def Create_contiguous(self, count: int) -> Self:
        """Return the datatype of so many elements, one after the other."""
        _check_counts(count)
        return self._derive(place(self.layout, count, (0,)), "CONTIGUOUS", count=count)

    def Create_vector(self, count: int, blocklength: int, stride: int) -> Self:
        """Return the datatype of equal blocks at a stride in elements."""
        _check_counts(count, blocklength)
        where = np.arange(count, dtype=np.int64) * (stride * self.extent)
        layout = place(self.layout, blocklength, where)
        return self._derive(layout, "VECTOR", count=count, blocklength=blocklength, stride=stride)

    def Create_hvector(self, count: int, blocklength: int, stride: int) -> Self:
        """Return the datatype of equal blocks at a stride in bytes."""
        _check_counts(count, blocklength)
        layout = place(self.layout, blocklength, np.arange(count, dtype=np.int64) * stride)
        return self._derive(layout, "HVECTOR", count=count, blocklength=blocklength, stride=stride)

    def Create_indexed(self, blocklengths: Sequence[int], displacements: Sequence[int]) -> Self:
        """Return the datatype of blocks at displacements in elements."""
        lengths, where = list(blocklengths), _same_length(displacements, blocklengths)
        layout = self._place_each(lengths, [one * self.extent for one in where])
        return self._derive(layout, "INDEXED", blocklengths=lengths, displacements=where)

    def Create_hindexed(self, blocklengths: Sequence[int], displacements: Sequence[int]) -> Self:
        """Return the datatype of blocks at displacements in bytes."""
        lengths, where = list(blocklengths), _same_length(displacements, blocklengths)
        layout = self._place_each(lengths, where)
        return self._derive(layout, "HINDEXED", blocklengths=lengths, displacements=where)

    def _place_each(self, lengths: Sequence[int], where: Sequence[int]) -> Layout:
        _check_counts(*lengths)
        return layouts.join(
            [place(self.layout, count, (at,)) for count, at in zip(lengths, where, strict=True)]
        )

    def Create_indexed_block(self, blocklength: int, displacements: Sequence[int]) -> Self:
        """Return the datatype of equal blocks at displacements in elements."""
        _check_counts(blocklength)
        where = list(displacements)
        layout = place(self.layout, blocklength, np.array(where, np.int64) * self.extent)
        return self._derive(layout, "INDEXED_BLOCK", blocklength=blocklength, displacements=where)

    def Create_hindexed_block(self, blocklength: int, displacements: Sequence[int]) -> Self:
        """Return the datatype of equal blocks at displacements in bytes."""
        _check_counts(blocklength)
        where = list(displacements)
        layout = place(self.layout, blocklength, where)
        return self._derive(layout, "HINDEXED_BLOCK", blocklength=blocklength, displacements=where)

    @classmethod
    def Create_struct(
        cls,
        blocklengths: Sequence[int],
        displacements: Sequence[int],
        datatypes: "Sequence[Datatype]",
    ) -> Self:
        """Return the datatype of blocks of various datatypes at displacements in bytes."""
        lengths, where = list(blocklengths), _same_length(displacements, blocklengths)
        old = [one._original() for one in _same_length(datatypes, blocklengths)]
        _check_counts(*lengths)
        layout = layouts.join(
            [
                place(one.layout, count, (at,))
                for one, count, at in zip(old, lengths, where, strict=True)
            ]
        )
        params = {"blocklengths": lengths, "displacements": where, "datatypes": old}
        return cls._make(layouts.pad(layout), Making(COMBINER_STRUCT, params, tuple(old)))

    def Create_subarray(
        self,
        sizes: Sequence[int],
        subsizes: Sequence[int],
        starts: Sequence[int],
        order: int = ORDER_C,
    ) -> Self:
        """Return the datatype of a part of an array; its extent is that of the array."""
        whole, part, first = list(sizes), _same_length(subsizes, sizes), _same_length(starts, sizes)
        for size, subsize, start in zip(whole, part, first, strict=True):
            if not 0 < subsize <= size or not 0 <= start <= size - subsize:
                raise errors.make_error(
                    ERR_ARG, f"{subsize} elements from {start} on are not among {size}"
                )
        turn = 1 if order == ORDER_C else -1
        layout = layouts.place_subarray(self.layout, whole[::turn], part[::turn], first[::turn])
        making = Making(
            COMBINER_SUBARRAY,
            {"sizes": whole, "subsizes": part, "starts": first, "order": order},
            (self._original(),),
        )
        return self._make(layout, making)

    def Create_darray(
        self,
        size: int,
        rank: int,
        gsizes: Sequence[int],
        distribs: Sequence[int],
        dargs: Sequence[int],
        psizes: Sequence[int],
        order: int = ORDER_C,
    ) -> Self:
        """Return the datatype of a rank's part of an array that is shared out over a grid."""
        params: Params = {
            "size": size,
            "rank": rank,
            "gsizes": list(gsizes),
            "distribs": _same_length(distribs, gsizes),
            "dargs": _same_length(dargs, gsizes),
            "psizes": _same_length(psizes, gsizes),
            "order": order,
        }
        indices = distributions.share_out(**params)
        turn = 1 if order == ORDER_C else -1
        layout = layouts.place_indices(self.layout, params["gsizes"][::turn], indices[::turn])
        return self._make(layout, Making(COMBINER_DARRAY, params, (self._original(),)))

    def Create_resized(self, lb: int, extent: int) -> Self:
        """Return the datatype with another lower bound and extent."""
        layout = layouts.resize(self.layout, lb, extent)
        return self._derive(layout, "RESIZED", lb=lb, extent=extent)

    @classmethod
    def Get_value_index(cls, value: "Datatype", index: "Datatype") -> "Datatype":
        """Return the predefined datatype of a value with its index; null: there is none."""
        value._check()
        index._check()
        for pair, name in PAIRS.items():
            if value._builtin == name and index._builtin == "INT":
                return find_constant(pair)
        return cls()

    @classmethod
    def Create_f90_integer(cls, r: int) -> "Datatype":
        """Return the integer datatype for numbers of so many decimal digits."""
        for digits, name in ((2, "INTEGER1"), (4, "INTEGER2"), (9, "INTEGER4"), (18, "INTEGER8")):
            if r <= digits:
                return _f90(COMBINER_F90_INTEGER, name, {"r": r})
        raise errors.make_error(ERR_ARG, f"no integer has {r} decimal digits")

    @classmethod
    def Create_f90_real(cls, p: int, r: int) -> "Datatype":
        """Return the real datatype of so many decimal digits and of such a range."""
        return _f90(COMBINER_F90_REAL, _find_f90_real("REAL", p, r, 4), {"p": p, "r": r})

    @classmethod
    def Create_f90_complex(cls, p: int, r: int) -> "Datatype":
        """Return the complex datatype of so many decimal digits and of such a range."""
        return _f90(COMBINER_F90_COMPLEX, _find_f90_real("COMPLEX", p, r, 8), {"p": p, "r": r})

    @classmethod
    def Match_size(cls, typeclass: int, size: int) -> "Datatype":
        """Return the datatype of a class with so many bytes."""
        kinds = {
            TYPECLASS_LOGICAL: "LOGICAL",
            TYPECLASS_INTEGER: "INTEGER",
            TYPECLASS_REAL: "REAL",
            TYPECLASS_COMPLEX: "COMPLEX",
        }
        name = f"{kinds.get(typeclass, '?')}{size}"
        if name not in BY_NAME:
            raise errors.make_error(ERR_ARG, f"there is no datatype {name}")
        return find_constant(name)

    def Commit(self) -> Self:
        """Do nothing: datatypes are ready once they are made. Return it."""
        self._check()
        return self

    def Free(self) -> None:
        """Make the handle null; datatypes made of it stay."""
        self._check()
        if self.is_predefined:
            raise errors.make_error(ERR_TYPE, f"{self.Get_name()} cannot be freed")
        if self._attributes:
            self.delete_attributes()
        self._make_null()

    # ------------------------------------------------------------ how it was made

    def Get_envelope(self) -> tuple[int, int, int, int, int]:
        """Return the numbers of integers, addresses, counts and datatypes, and the combiner."""
        integers, counts, datatypes = self._list_contents()
        return len(integers), 0, len(counts), len(datatypes), self._making.combiner

    def Get_contents(self) -> tuple[list[int], list[int], list[int], "list[Datatype]"]:
        """Return the integers, addresses, counts and datatypes that it was made of."""
        integers, counts, datatypes = self._list_contents()
        if self._making.combiner == COMBINER_NAMED:
            raise errors.make_error(ERR_TYPE, f"{self.Get_name()} was not made of others")
        return integers, [], counts, [new_handle(one) for one in datatypes]

    def _list_contents(self) -> "tuple[list[int], list[int], Sequence[Datatype]]":
        self._check()
        making = self._making
        given, old = making.params, making.old
        match making.combiner:
            case constants.COMBINER_NAMED | constants.COMBINER_DUP:
                return [], [], old
            case constants.COMBINER_F90_INTEGER:
                return [given["r"]], [], []
            case constants.COMBINER_F90_REAL | constants.COMBINER_F90_COMPLEX:
                return [given["p"], given["r"]], [], []
            case constants.COMBINER_SUBARRAY:
                counts = [*given["sizes"], *given["subsizes"], *given["starts"]]
                return [len(given["sizes"]), given["order"]], counts, old
            case constants.COMBINER_DARRAY:
                shape = [*given["distribs"], *given["dargs"], *given["psizes"]]
                head = [given["size"], given["rank"], len(given["gsizes"])]
                return [*head, *shape, given["order"]], given["gsizes"], old
            case constants.COMBINER_INDEXED | constants.COMBINER_HINDEXED:
                counts = [*given["blocklengths"], *given["displacements"]]
                return [], [len(given["blocklengths"]), *counts], old
            case constants.COMBINER_STRUCT:
                counts = [*given["blocklengths"], *given["displacements"]]
                return [], [len(given["blocklengths"]), *counts], old
            case constants.COMBINER_INDEXED_BLOCK | constants.COMBINER_HINDEXED_BLOCK:
                counts = given["displacements"]
                return [], [len(counts), given["blocklength"], *counts], old
        return [], list(given.values()), old

    def decode(self) -> tuple["Datatype", str, Params]:
        """Return the datatype that it was made of, the way, and the arguments."""
        self._check()
        making = self._making
        name = _COMBINERS[making.combiner]
        if making.combiner == COMBINER_NAMED:
            return self, name, {}
        params = {
            key: list(value) if isinstance(value, list) else value
            for key, value in making.params.items()
        }
        if making.combiner == COMBINER_STRUCT:
            params["datatypes"] = [new_handle(one) for one in making.old]
        if len(making.old) != 1:
            return Datatype(), name, params
        return new_handle(making.old[0]), name, params

    envelope = property(Get_envelope, doc="See `Get_envelope`.")
    contents = property(Get_contents, doc="See `Get_contents`.")

    @property
    def combiner(self) -> int:
        """The way in which it was made."""
        self._check()
        return self._making.combiner

    @property
    def is_named(self) -> bool:
        """Whether it is of the standard and has a name."""
        return self.combiner == COMBINER_NAMED

    # ------------------------------------------------------------ names

    def Get_name(self) -> str:
        """Return its name."""
        return "MPI_DATATYPE_NULL" if self._token is None else self._name

    def Set_name(self, name: str) -> None:
        """Set its name."""
        self._check()
        self._name = name[: MAX_OBJECT_NAME - 1]

    name = property(Get_name, Set_name, doc="Its name.")

    def _find_basic(self) -> Basic | None:
        """Return the basic datatype that it is, or duplicates."""
        if self._token is None:
            return None
        if self._making.combiner == COMBINER_DUP:
            return self._making.old[0]._find_basic()
        return self._basic

    def tocode(self) -> str:
        """Return the code that `fromcode` makes a datatype of.

        Raises:
            ValueError: it has none.
        """
        basic = self._find_basic()
        if basic is None or basic.code is None:
            raise ValueError(f"cannot map {self.Get_name() or 'this datatype'} to a code")
        return basic.code

    @classmethod
    def fromcode(cls, code: str) -> "Datatype":
        """Return the predefined datatype of a code of NumPy or PEP 3118.

        Raises:
            ValueError: the code names none.
        """
        try:
            return find_code(code)
        except KeyError:
            raise ValueError(f"cannot map code {code!r} to a datatype") from None

    @property
    def typestr(self) -> str:
        """Kind and size of elements, as of the array interface; V and the extent: others."""
        basic = self._find_basic()
        if basic is not None and basic.text is not None:
            return basic.text
        return f"V{0 if self._token is None else self.extent}"

    @property
    def typechar(self) -> str:
        """Character of elements, as of PEP 3118; V: others."""
        basic = self._find_basic()
        return "V" if basic is None or basic.char is None else basic.char


_constants: dict[str, Datatype] = {}
"""Predefined datatypes, by name."""
_codes: dict[str, Datatype] = {}


def register(constants: dict[str, Datatype], codes: dict[str, Datatype]) -> None:
    """Set the predefined datatypes, once they are made."""
    _constants.update(constants)
    _codes.update(codes)


def find_constant(name: str) -> Datatype:
    """Return a predefined datatype."""
    return _constants[name]


def find_code(code: str) -> Datatype:
    """Return the datatype of a code.

    Raises:
        KeyError: it names none.
    """
    return _codes[code]


def new_handle(datatype: Datatype) -> Datatype:
    """Return another handle, but of a constant the constant itself."""
    if datatype._builtin:
        return datatype
    made = object.__new__(Datatype)
    made.__dict__.update(datatype.__dict__)
    return made


def _rebuild(
    cls: type[Datatype], old: tuple[Datatype, ...], combiner: int, params: Params
) -> Datatype:
    """Return a datatype made anew, from a pickle."""
    name = _COMBINERS[combiner].lower()
    if combiner == COMBINER_VALUE_INDEX:
        return Datatype.Get_value_index(*old)
    on = old[0] if len(old) == 1 and combiner != COMBINER_STRUCT else cls
    made = getattr(on, f"Create_{name}")(**params)
    return made if type(made) is cls or combiner in _F90 else cls(made)


def _f90(combiner: int, name: str, params: Params) -> Datatype:
    basic = BY_NAME[name]
    layout = make_basic(name, basic.size, basic.align)
    return Datatype._make(layout, Making(combiner, params), basic)


def _find_f90_real(kind: str, p: int, r: int, size: int) -> str:
    for digits, exponent, factor in ((6, 37, 1), (15, 307, 2), (18, 4931, 4)):
        if p <= digits and r <= exponent:
            return f"{kind}{size * factor}"
    raise errors.make_error(ERR_ARG, f"no number has {p} decimal digits and a range of 10**{r}")


def _check_counts(*counts: int) -> None:
    if any(count < 0 for count in counts):
        raise errors.make_error(constants.ERR_COUNT, f"a count is negative: {list(counts)}")


def _same_length(values: Sequence[Any], like: Sequence[Any]) -> list[Any]:
    found = list(values)
    if len(found) != len(like):
        raise ValueError(f"expecting {len(like)} items, got {len(found)}")
    return found
