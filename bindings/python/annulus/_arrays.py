# SPDX-License-Identifier: Apache-2.0
"""Views of other libraries' arrays, which become the C API's tensors without a copy; new arrays of the same library."""

from __future__ import annotations

import ctypes
import functools
import importlib
import sys
from typing import Any, Callable, NamedTuple, Sequence, Tuple

import numpy as np

from . import _capi
from ._ending import check_not_ending
from ._errors import ArgumentError, UnsupportedError, driver_error
from .types import Layout

Shape = Tuple[int, ...]

DTYPES = {
    "float64": _capi.ANNULUS_FLOAT64,
    "float32": _capi.ANNULUS_FLOAT32,
    "bfloat16": _capi.ANNULUS_BFLOAT16,
    "float16": _capi.ANNULUS_FLOAT16,
}
BYTES = {name: _capi.annulus_dtype_bits(number) // 8 for name, number in DTYPES.items()}

# A device: ("cpu", 0) or ("cuda", number).
Place = Tuple[str, int]
CPU: Place = ("cpu", 0)

# DLPack's numbers for kinds of devices and of dtypes.
_DL_CPU, _DL_CUDA, _DL_CUDA_HOST, _DL_CUDA_MANAGED = 1, 2, 3, 13
_DL_TYPES = {0: "int", 1: "uint", 2: "float", 4: "bfloat", 5: "complex", 6: "bool"}


def lse_dtype(dtype: str) -> str:
    """Returns the dtype of LSE and mass for rows of `dtype`."""
    return "float64" if dtype == "float64" else "float32"


def exchanged(axes: Sequence[int]) -> Shape:
    """Exchanges the axes N and heads of [..., heads, N, D] or [..., N, heads, D]."""
    *batch, first, second, last = axes
    return (*batch, second, first, last)


class View(NamedTuple):
    """Where an array's elements lie. Strides count elements; device is ("cpu", 0) or ("cuda", number)."""

    name: str
    address: int
    dtype: str
    shape: Shape
    strides: Shape
    device: Place
    read_only: bool
    library: Library
    array: Any  # keeps the memory: the array itself, or with it the owner of its DLPack capsule
    is_result: bool = False  # the caller's array, to which a result is written

    def laid_out(self, layout: Layout | None) -> View:
        """Returns the view with its axes as [B, N, heads, D], if the array has this layout."""
        if layout != "bhnd" or len(self.shape) < 3:
            return self
        return self._replace(shape=exchanged(self.shape), strides=exchanged(self.strides))


class Library(NamedTuple):
    """The functions of the library that an array comes from."""

    name: str
    # (shape, dtype, like: View): makes an array on the device of `like`.
    empty: Callable[[Shape, str, View], Any]
    # (device number): returns the address of the library's current CUDA stream.
    stream: Callable[[int], int]
    # (stream, device number): makes results that were written on the stream visible to the library.
    finish: Callable[[int, int], None]
    # The expression that makes a contiguous copy, for messages; {} stands for the array.
    copy: str


def _nothing(stream: int, device: int) -> None:
    """Does nothing, since the library orders its work on the same stream."""


# --- NumPy, and all others with a buffer in host memory


def _host_dtype(name: str) -> Any:
    if name == "bfloat16":
        import ml_dtypes  # it is there: the caller's bfloat16 array came from it

        return ml_dtypes.bfloat16
    return name


_NUMPY = Library(
    "numpy",
    lambda shape, dtype, like: np.empty(shape, _host_dtype(dtype)),
    lambda device: 0,
    _nothing,
    "np.ascontiguousarray({})",
)


def _element_strides(name: str, byte_strides: Sequence[int], shape: Shape, dtype: str) -> Shape:
    size = BYTES[dtype]
    for stride, length in zip(byte_strides, shape):
        if stride % size and length > 1:
            raise ArgumentError(
                f"{name} has a stride of {stride} bytes; it must be a multiple of {size}, its element's size"
            )
    return tuple(stride // size for stride in byte_strides)


def check_dtype(name: str, dtype: str, array: Any = None) -> str:
    if dtype not in DTYPES:
        raise ArgumentError(f"{name} has dtype {dtype}; it must be {', '.join(DTYPES)}")
    if array is not None and not array.dtype.isnative:
        raise ArgumentError(f"{name} has the other byte order; it must be the machine's own")
    return dtype


def _from_numpy(name: str, array: np.ndarray) -> View:
    dtype = check_dtype(name, array.dtype.name, array)
    address, read_only = array.__array_interface__["data"]
    strides = _element_strides(name, array.strides, array.shape, dtype)
    return View(name, address, dtype, array.shape, strides, CPU, read_only, _NUMPY, array)


# --- PyTorch


def _torch_empty(shape: Shape, dtype: str, like: View) -> Any:
    torch = sys.modules["torch"]
    return torch.empty(shape, dtype=getattr(torch, dtype), device=like.array.device)


def _torch_stream(device: int) -> int:
    return sys.modules["torch"].cuda.current_stream(device).cuda_stream


_TORCH = Library("torch", _torch_empty, _torch_stream, _nothing, "{}.contiguous()")


@functools.lru_cache(maxsize=None)
def _torch_dtype(dtype: Any) -> str:
    return str(dtype).rpartition(".")[2]


def torch_view(name: str, tensor: Any) -> View:
    dtype = check_dtype(name, _torch_dtype(tensor.dtype))
    device = tensor.device
    if device.type not in ("cpu", "cuda"):
        raise UnsupportedError(f"{name} is a tensor on {device}; it must be on the CPU or a CUDA device")
    try:
        address, strides = tensor.data_ptr(), tensor.stride()
    except RuntimeError:  # a sparse tensor, or a stand-in while PyTorch transforms a function
        raise UnsupportedError(
            f"{name} is a tensor of {tensor.layout} without memory of its own; it must be a plain dense one"
        ) from None
    place = CPU if device.type == "cpu" else ("cuda", device.index)
    return View(name, address, dtype, tuple(tensor.shape), strides, place, False, _TORCH, tensor)


def _from_torch(name: str, tensor: Any) -> View:
    if tensor.requires_grad and sys.modules["torch"].is_grad_enabled():
        raise ArgumentError(
            f"{name} requires a gradient; annulus.torch.dilated_attention() is differentiable, this function is not"
        )
    return torch_view(name, tensor)


# --- CuPy, Numba and others with __cuda_array_interface__


def _cupy_empty(shape: Shape, dtype: str, like: View) -> Any:
    cupy = sys.modules["cupy"]
    with cupy.cuda.Device(like.device[1]):
        return cupy.empty(shape, _host_dtype(dtype))


def _cupy_stream(device: int) -> int:
    cupy = sys.modules["cupy"]
    with cupy.cuda.Device(device):
        return cupy.cuda.get_current_stream().ptr


_CUPY = Library("cupy", _cupy_empty, _cupy_stream, _nothing, "cupy.ascontiguousarray({})")


def _from_cupy(name: str, array: Any) -> View:
    dtype = check_dtype(name, array.dtype.name)
    strides = _element_strides(name, array.strides, array.shape, dtype)
    return View(name, array.data.ptr, dtype, array.shape, strides, ("cuda", array.device.id), False, _CUPY, array)


def _unknown_empty(shape: Shape, dtype: str, like: View) -> Any:
    if like.device == CPU:
        return np.empty(shape, _host_dtype(dtype))
    raise UnsupportedError(
        f"{like.name} is a {type(like.array).__name__}; results of that kind must be given by out= and lse="
    )


def _default_stream(device: int) -> int:
    return 0


def _synchronise(stream: int, device: int) -> None:
    """Waits for a stream of a device's primary context, by CUDA's driver."""
    cuda = ctypes.CDLL("libcuda.so.1")
    number, context = ctypes.c_int(), ctypes.c_void_p()
    calls = [
        lambda: cuda.cuDeviceGet(ctypes.byref(number), ctypes.c_int(device)),
        lambda: cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), number),
        lambda: cuda.cuCtxPushCurrent_v2(context),
        lambda: cuda.cuStreamSynchronize(ctypes.c_void_p(stream)),
        lambda: cuda.cuCtxPopCurrent_v2(ctypes.byref(context)),
        lambda: cuda.cuDevicePrimaryCtxRelease_v2(number),
    ]
    for call in calls:
        if result := call():
            raise driver_error(f"waiting for device {device}", result)


_UNKNOWN = Library("unknown", _unknown_empty, _default_stream, _synchronise, "a contiguous copy of {}")


def _cuda_device_of(address: int) -> int:
    """Returns the number of the CUDA device whose memory holds an address."""
    cuda = ctypes.CDLL("libcuda.so.1")
    number = ctypes.c_int()
    device_ordinal = 9  # CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
    if result := cuda.cuPointerGetAttribute(ctypes.byref(number), device_ordinal, ctypes.c_ulonglong(address)):
        raise driver_error("asking for the device of an address", result)
    return number.value


def _from_cuda_array_interface(name: str, array: Any) -> View:
    interface = array.__cuda_array_interface__
    shape = tuple(interface["shape"])
    dtype = check_dtype(name, np.dtype(interface["typestr"]).name)
    byte_strides = interface.get("strides")
    strides = _element_strides(name, byte_strides, shape, dtype) if byte_strides else contiguous(shape)
    address, read_only = interface["data"]
    device = ("cuda", _cuda_device_of(address) if address else 0)
    stream = interface.get("stream")
    if stream:  # 1 and 2 are the legacy and the thread's default stream, here and in the driver
        _synchronise(stream, device[1])
    return View(name, address, dtype, shape, strides, device, bool(read_only), _UNKNOWN, array)


# --- JAX, and others with __dlpack__


def contiguous(shape: Shape) -> Shape:
    """Returns the strides of a contiguous array, in elements."""
    strides, step = [], 1
    for length in reversed(shape):
        strides.append(step)
        step *= max(length, 1)
    return tuple(reversed(strides))


def _capsule(array: Any, stream: int | None) -> Any:
    """Returns a DLPack capsule, versioned if the library can. Work on `stream` sees what was written to the array."""
    try:
        return array.__dlpack__(stream=stream, max_version=(1, 0))
    except TypeError:
        return array.__dlpack__(stream=stream)


def _from_dlpack(name: str, array: Any, library: Library = _UNKNOWN) -> View:
    kind, number = array.__dlpack_device__()
    kind = int(kind)
    if kind not in (_DL_CPU, _DL_CUDA, _DL_CUDA_HOST, _DL_CUDA_MANAGED):
        raise UnsupportedError(f"{name} is on device type {kind} of DLPack; only the CPU and CUDA devices are possible")
    on_cuda = kind in (_DL_CUDA, _DL_CUDA_MANAGED)
    legacy_stream = 1
    capsule = _capsule(array, legacy_stream if on_cuda else None)
    address, code, bits, lanes, shape, strides, _, _, read_only, owner = _capi.annulus_read_dlpack(capsule)
    dtype = f"{_DL_TYPES.get(code, f'type {code} of DLPack with bits: ')}{bits}{f' x {lanes}' if lanes != 1 else ''}"
    check_dtype(name, dtype)
    device = ("cuda", int(number)) if on_cuda else CPU
    view = View(name, address, dtype, shape, strides or contiguous(shape), device, read_only, library, array)
    return view._replace(array=_Kept(array, owner))


class _Kept(NamedTuple):
    array: Any
    owner: Any


def _jax_empty(shape: Shape, dtype: str, like: View) -> Any:
    jax = sys.modules["jax"]
    array = like.array.array
    devices = array.devices() if callable(getattr(array, "devices", None)) else {array.device()}
    with jax.default_device(next(iter(devices))):
        return jax.numpy.empty(shape, dtype).block_until_ready()


# annulus writes to a JAX array that it has just made. JAX takes arrays for constant from then on.
_JAX = Library("jax", _jax_empty, _default_stream, _synchronise, "{}.copy()")


def _from_jax(name: str, array: Any) -> View:
    if isinstance(array, sys.modules["jax"].core.Tracer):
        raise UnsupportedError(
            f"{name} is traced by jax.jit, jax.grad or jax.vmap, which annulus.jax.attention() is for; here only "
            "concrete arrays are possible"
        )
    return _from_dlpack(name, array, _JAX)._replace(read_only=True)


# --- An array of any library


def view(name: str, array: Any) -> View:
    """Returns the view of an array. Raises ArgumentError, UnsupportedError or TypeError if it cannot be viewed."""
    check_not_ending()  # first, since NumPy and other libraries then fail with unclear messages
    if isinstance(array, np.ndarray):
        if isinstance(array, np.ma.MaskedArray):
            raise ArgumentError(f"{name} is a masked array; it must be an array without a mask, as filled() gives")
        return _from_numpy(name, array)
    home = type(array).__module__.partition(".")[0]
    if "torch" in sys.modules and isinstance(array, sys.modules["torch"].Tensor):
        return _from_torch(name, array)
    if home == "cupy":
        return _from_cupy(name, array)
    if home in ("jax", "jaxlib"):
        return _from_jax(name, array)
    if hasattr(array, "__dlpack__") and hasattr(array, "__dlpack_device__"):
        return _from_dlpack(name, array)
    if hasattr(array, "__cuda_array_interface__"):
        return _from_cuda_array_interface(name, array)
    if hasattr(array, "__array_interface__"):
        return _from_numpy(name, np.asarray(array))
    try:
        return _from_numpy(name, np.asarray(memoryview(array)))
    except TypeError:
        kind = type(array)
        if hasattr(array, "__array__"):  # it may read a file or compute; the caller should decide when
            raise TypeError(
                f"{name} is a {kind.__module__}.{kind.__qualname__}; np.asarray({name}) makes an array of NumPy of it, "
                "which is taken"
            ) from None
        raise TypeError(
            f"{name} is a {kind.__name__}; it must be an array of NumPy, PyTorch, CuPy or JAX, or another one "
            "with __dlpack__, __cuda_array_interface__ or a buffer"
        ) from None


def library_of(array: Any) -> Any:
    """Returns the module with the functions for an array: torch, jax.numpy, cupy or numpy."""
    library = type(array).__module__.partition(".")[0]
    names = {"torch": "torch", "jax": "jax.numpy", "jaxlib": "jax.numpy", "cupy": "cupy"}
    return importlib.import_module(names.get(library, "numpy"))


def tensor(view: View, ndim: int) -> Any:
    """Makes the C API's tensor of `ndim` dimensions. The first may be missing in the array, and then has length 1."""
    shape, strides = view.shape, view.strides
    check_ndim(view.name, len(shape), ndim)
    if 0 not in shape:
        _check_strides(view, ndim)
    if len(shape) == ndim - 1:
        shape, strides = (1, *shape), (0, *strides)  # length 1: the stride is never used
    # An array without elements may have no address; NULL would be refused before its shape is.
    address = view.address or (BYTES[view.dtype] if 0 in shape else None)
    return _capi.annulus_tensor(address, DTYPES[view.dtype], shape, strides)


def _check_strides(view: View, ndim: int) -> None:
    """Refuses strides that the library would refuse, and says how to make an array with other strides."""
    wrong = None
    if min(view.strides) < 0:
        wrong = f"strides {view.strides} in elements; none may be negative"
    elif ndim == 4 and view.strides[-1] != 1:
        wrong = f"a stride of {view.strides[-1]} elements along D; it must be 1"
    if wrong and view.is_result:
        raise ArgumentError(f"{view.name} has {wrong}: give a new, contiguous array")
    if wrong:
        raise ArgumentError(f"{view.name} has {wrong}: give {view.library.copy.format(view.name)}")


def check_ndim(name: str, found: int, ndim: int = 4) -> None:
    """Refuses a wrong number of dimensions. ndim: 4 for rows, 3 for LSE and mass; B may be left out."""
    if found not in (ndim - 1, ndim):
        axes = "[B, N, heads, D] (with layout='bhnd' [B, heads, N, D])" if ndim == 4 else "[B, heads, N]"
        raise ArgumentError(f"{name} has {found} dimensions; it must have {ndim}, {axes}, or {ndim - 1}, without B")


def writable(view: View) -> View:
    """Returns the view marked as a result. Refuses a read-only array."""
    if view.read_only:
        raise ArgumentError(f"{view.name} is read-only; results are written to it")
    return view._replace(is_result=True)
