# SPDX-License-Identifier: Apache-2.0
"""arrays.py SECONDS SEED: tests what the Python bindings read from objects of other libraries: arrays with odd
properties, DLPack capsules, buffers, sequences of numbers.

This program does not use libFuzzer. The defects to find lie in how the bindings treat objects whose methods do
anything. libFuzzer chooses bytes, and Python code would still have to make such objects of them. The interpreter is not
instrumented; the bindings are, by the address and undefined-behaviour sanitizers.

The addresses in an object are the caller's responsibility, like pointers in the C API. Nothing here follows them. The
bindings accept an object or refuse it with an exception from which Python can continue. They release an accepted DLPack
tensor once.
"""

import array
import ctypes
import random
import sys
import time

import numpy as np

from annulus import _arrays, _capi
from dlpack import DELETER, Plain, Versioned

EXTREMES = [0, -1, 1, 2, 7, 64, 65, 2**31 - 1, 2**31, -(2**31), 2**40, 2**62, 2**63 - 1, -(2**63), 2**63, 2**64, 2**80]
# Without "|O", whose elements are addresses.
TEXTS = ["<f4", "<f8", "<f2", ">f4", "|V2", "<i8", "f", "", "<f4\0", "é", "<f4,<f4", "[('a', '<f4')]"]


class Stop(Exception):
    """An exception that a foreign object raises."""


class Numbers:
    def __init__(self, seed):
        self.random = random.Random(seed)

    def once_in(self, count):
        return self.random.randrange(count) == 0

    def number(self):
        return self.random.choice(EXTREMES) if self.once_in(3) else self.random.randrange(-2, 20)

    def numbers(self, longest=6):
        return tuple(self.number() for _ in range(self.random.randrange(longest)))

    def odd(self):
        """Returns a value that is no number, or one that is not expected there."""
        return self.random.choice([None, 1.5, "4", b"4", (), [1], {}, object(), True, np.float32(3), Stop])

    def maybe_odd(self, value):
        return self.odd() if self.once_in(12) else value


class Meddler:
    """A number that changes its list while it is converted."""

    def __init__(self, owner, value):
        self.owner, self.value = owner, value

    def __index__(self):
        self.owner.clear()
        self.owner.extend([object()] * (self.value % 3))
        if self.value % 5 == 4:
            raise Stop
        return self.value


new_capsule = ctypes.pythonapi.PyCapsule_New
new_capsule.restype, new_capsule.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
capsule_name = ctypes.pythonapi.PyCapsule_GetName
capsule_name.restype, capsule_name.argtypes = ctypes.c_char_p, [ctypes.py_object]

NAMES = {Plain: b"dltensor", Versioned: b"dltensor_versioned"}
WRONG_NAMES = [b"used_dltensor", b"nonsense", b""]
MEMORY = np.zeros(4096, np.float64)


# Two defects release references to None: CPython 3.11's ctypes when it makes a type, and NumPy 1.24 when it makes odd
# arrays. Some million calls would release the last one.
ARRAYS = [ctypes.c_int64 * length for length in range(66)]
REFERENCES_TO_NONE = [None] * 10**7


class Dlpack:
    """An object with __dlpack__. It counts how often its tensor was released."""

    def __init__(self, numbers):
        self.released = 0
        chance = numbers.random
        kind = chance.choice([Plain, Versioned])
        ndim = chance.choice([-1, 2**31 - 1, -(2**31), 65]) if numbers.once_in(12) else chance.randrange(7)
        lengths = max(0, min(ndim, 65))
        self.shape, self.strides = (
            ARRAYS[lengths](*(ctypes.c_int64(numbers.number()).value for _ in range(lengths))) for _ in range(2)
        )
        self.managed = kind()
        tensor = self.managed.tensor
        tensor.data = MEMORY.ctypes.data if not numbers.once_in(6) else None
        tensor.device_type, tensor.device_id = 1, 0
        tensor.ndim = ndim
        kinds = [(2, 32, 1), (2, 64, 1), (4, 16, 1), (9, 3, 0), (2, 32, 4)]
        tensor.code, tensor.bits, tensor.lanes = chance.choice(kinds)
        # Without a shape, only a tensor of ndim 0 is described completely.
        if not numbers.once_in(12):
            tensor.shape = ctypes.cast(self.shape, ctypes.POINTER(ctypes.c_int64))
        if numbers.once_in(2):
            tensor.strides = ctypes.cast(self.strides, ctypes.POINTER(ctypes.c_int64))
        tensor.byte_offset = abs(numbers.number()) % 2**64
        if kind is Versioned:
            self.managed.major = chance.choice([1, 1, 1, 0, 2, 2**32 - 1])
            self.managed.flags = chance.randrange(4)
        self.deleter = DELETER(self.release) if not numbers.once_in(8) else DELETER(0)
        self.managed.deleter = self.deleter
        self.name = NAMES[kind] if not numbers.once_in(8) else chance.choice(WRONG_NAMES + list(NAMES.values()))
        if self.name not in (NAMES[kind], *WRONG_NAMES):
            self.name = NAMES[kind]  # a structure under the other's name is a wrong pointer
        self.capsule = new_capsule(ctypes.addressof(self.managed), self.name, None)
        self.device = numbers.maybe_odd((chance.choice([1, 1, 1, 3, 7, -1]), 0))
        self.fails = numbers.once_in(16)

    def release(self, _):
        self.released += 1

    def __dlpack__(self, *, stream=None, max_version=None):
        if self.fails:
            raise Stop
        return self.capsule

    def __dlpack_device__(self):
        return self.device

    def check(self):
        """Checks the releases, when no reference to the imported tensors remains."""
        was_taken = capsule_name(self.capsule) != self.name
        assert self.released == (was_taken and bool(self.deleter)), (self.released, self.name)


class Interface:
    """An object with NumPy's or CUDA's array interface."""

    def __init__(self, name, dictionary):
        setattr(self, name, dictionary)


def interface(numbers):
    dictionary = {
        "shape": numbers.maybe_odd(numbers.numbers()),
        "typestr": numbers.maybe_odd(numbers.random.choice(TEXTS)),
        "data": numbers.maybe_odd((0, numbers.once_in(2))),
        "version": numbers.maybe_odd(3),
        "strides": numbers.maybe_odd(numbers.numbers() if numbers.once_in(2) else None),
    }
    for key in list(dictionary):
        if numbers.once_in(16):
            del dictionary[key]
    return dictionary


def strided(numbers):
    """A NumPy array that no library would make. Its memory ends where its elements end."""
    dtype = numbers.random.choice(["f4", "f8", "f2", ">f4", "i8", "V2", "c8", "b1"])
    lengths = [0, 1, 2, 3, 8, 2**20, 2**31, 2**40]
    shape = tuple(numbers.random.choice(lengths) for _ in range(numbers.random.randrange(6)))
    strides = tuple(numbers.random.choice([0, 1, 3, 4, 8, 64, -4, 2**31, 2**40, 2**61, -(2**61)]) for _ in shape)
    base = MEMORY.view(np.dtype(dtype))
    try:
        return np.lib.stride_tricks.as_strided(base, shape, strides, writeable=numbers.once_in(2))
    except (ValueError, TypeError):
        return MEMORY.reshape(8, 8, 8, 8)


def buffers(numbers):
    chance = numbers.random
    choice = chance.randrange(7)
    if choice == 0:
        return memoryview(MEMORY).cast("B").cast(chance.choice("fdBhq"), [chance.choice([1, 2, 4]), 8])
    if choice == 1:
        return array.array(chance.choice("fdiq"), [0] * chance.randrange(70))
    if choice == 2:
        return (ctypes.c_float * chance.randrange(9) * chance.randrange(5))()
    if choice == 3:
        return bytes(chance.randrange(70))
    if choice == 4:
        return MEMORY.reshape(4, 16, 8, 8)[:: chance.choice([1, 2, -1]), :: chance.choice([1, -3])]
    if choice == 5:
        return MEMORY[: 8 * 8 * 8].reshape(8, 8, 8).astype(chance.choice(["f2", "f4", ">f8"]), order="F")
    return np.broadcast_to(np.float32(1), (2, 3, 4, 8))


def foreign(numbers):
    choice = numbers.random.randrange(8)
    if choice < 2:
        return Dlpack(numbers)
    if choice == 2:
        return Interface("__array_interface__", numbers.maybe_odd(interface(numbers)))
    if choice == 3:
        return Interface("__cuda_array_interface__", numbers.maybe_odd(interface(numbers)))
    if choice == 4:
        return numbers.odd()
    return strided(numbers) if choice == 5 else buffers(numbers)


def sequence(numbers):
    values = [numbers.maybe_odd(value) for value in numbers.numbers()]
    if numbers.once_in(4) and values:
        values[numbers.random.randrange(len(values))] = Meddler(values, numbers.random.randrange(9))
    return numbers.maybe_odd(values if numbers.once_in(2) else tuple(values))


def read_tensor(numbers):
    view = _arrays.view("q", foreign(numbers))
    _arrays.tensor(view, numbers.random.choice([3, 4]))


def read_plain(numbers):
    """A call without a context, which is refused after its arrays were read."""
    count = numbers.random.choice([6, 11])
    function = _capi.forward_of_arrays if count == 6 else _capi.backward_of_arrays
    arrays = [foreign(numbers) for _ in range(count - 1)]
    if numbers.once_in(2):  # one odd array among good ones
        good = MEMORY[:128].reshape(2, 2, 4, 8)
        arrays = [array if numbers.once_in(4) else good for array in arrays]
    assert function(None, *arrays, None) != 0
    for array_ in arrays:
        if isinstance(array_, Dlpack):
            array_.check()


def read_capsule(numbers):
    exported = Dlpack(numbers)
    try:
        taken = _capi.annulus_read_dlpack(exported.capsule)
        del taken
        try:
            _capi.annulus_read_dlpack(exported.capsule)
        except TypeError:
            pass
        else:
            raise AssertionError("a capsule was taken twice")
    finally:
        exported.check()


def read_sequences(numbers):
    if numbers.once_in(2):
        _capi.annulus_tensor(numbers.maybe_odd(numbers.number()), 2, sequence(numbers), sequence(numbers))
    else:
        options = _capi.annulus_call_options()
        options.sequence_starts = sequence(numbers)
        options.sequence_lengths = sequence(numbers)


def main():
    seconds, seed = float(sys.argv[1]), int(sys.argv[2])
    end = time.monotonic() + seconds
    executed = 0
    tasks = [read_tensor, read_plain, read_capsule, read_sequences]
    while time.monotonic() < end:
        numbers = Numbers(seed + executed)
        task = tasks[numbers.random.randrange(len(tasks))]
        try:
            task(numbers)
        except (SystemError, RecursionError, AssertionError):
            print(f"{task.__name__}: arrays.py 1 {seed + executed}", file=sys.stderr)
            raise
        except (Exception, Stop):
            pass
        executed += 1
    assert _capi.annulus_last_error()
    print(f"stat::number_of_executed_units: {executed}", file=sys.stderr)


if __name__ == "__main__":
    main()
