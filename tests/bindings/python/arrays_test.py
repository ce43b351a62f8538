# SPDX-License-Identifier: Apache-2.0
"""Arrays of all libraries: results are equal to those of the C API, bit for bit."""

import ctypes
import unittest
from unittest import mock
import warnings

import capi
import dlpack
import tap
from capi import np
from exported import Exported

import annulus
from annulus import _capi

BRANCHES = [(16, 1), (48, 3)]
SHAPE, KV_SHAPE = (2, 83, 4, 16), (2, 83, 2, 16)


def inputs(dtype="float32"):
    return capi.numbers(7, SHAPE, KV_SHAPE, KV_SHAPE, SHAPE, dtype=dtype)


def backward(q, k, v, d_out, **options):
    context = annulus.Context(annulus.Config(BRANCHES, causal=True))
    out, lse = context.forward(q, k, v)
    return (out, lse, *context.backward(q, k, v, out, lse, d_out, **options))


class VersionedCapsule:
    """An array with a versioned DLPack capsule, made by hand. Counts how often its deleter is called."""

    def __init__(self, array, major=1, read_only=False):
        self.array, self.released, self.read_only = array, 0, read_only

        def release(_):
            self.released += 1

        self.release = dlpack.DELETER(release)
        self.shape = (ctypes.c_int64 * array.ndim)(*array.shape)
        offset = 8
        self.managed = dlpack.Versioned(
            major,
            0,
            None,
            self.release,
            int(read_only),
            dlpack.DlTensor(array.ctypes.data - offset, 1, 0, array.ndim, 2, 8 * array.itemsize, 1, self.shape, None, offset),
        )

    def __dlpack_device__(self):
        return 1, 0

    def __dlpack__(self, *, stream=None, max_version=None):
        assert stream is None and max_version == (1, 0)
        make = ctypes.pythonapi.PyCapsule_New
        make.restype, make.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        return make(ctypes.addressof(self.managed), b"dltensor_versioned", None)


class ArraysTest(unittest.TestCase):
    def assert_same(self, found, wanted):
        self.assertEqual(len(found), len(wanted))
        for one, other in zip(found, wanted):
            self.assertIsInstance(one, np.ndarray)
            self.assertEqual((one.dtype, one.shape), (other.dtype, other.shape))
            self.assertEqual(one.tobytes(), other.tobytes())

    def test_dtypes(self):
        for dtype in ("float64", "float32", "float16"):
            with self.subTest(dtype):
                arrays = inputs(dtype)
                self.assert_same(backward(*arrays), capi.compute(*arrays, BRANCHES, True, dtype))

    def test_bfloat16_of_ml_dtypes(self):
        try:
            import ml_dtypes
        except ImportError:
            self.skipTest("needs ml_dtypes")
        arrays = inputs(ml_dtypes.bfloat16)
        self.assert_same(backward(*arrays), capi.compute(*arrays, BRANCHES, True, "bfloat16"))

    def test_short_calls_read_plain_arrays_in_c(self):
        """Python does not read them, since that takes longer than such a call."""
        q, k, v, d_out = inputs()
        wanted = backward(q, k, v, d_out)
        with mock.patch.object(annulus._arrays, "view", side_effect=AssertionError):
            self.assert_same(backward(q, k, v, d_out), wanted)
            self.assert_same([annulus.attention(q, k, v, BRANCHES, causal=True)], wanted[:1])

    def test_arrays_that_c_cannot_read(self):
        """Mixed libraries, and other byte orders, dtypes and strides, are read in Python instead."""
        q, k, v, d_out = inputs()
        wanted = backward(q, k, v, d_out)
        self.assert_same(backward(q, Exported(k), memoryview(v), Exported(d_out)), wanted)
        odd = np.zeros(k.shape[:-1] + (k.shape[-1] * 4 + 1,), np.uint8)
        odd_strides = odd[..., : k.shape[-1] * 4].view("float32")
        for array in (k.astype(">f4"), k.astype("int32"), odd_strides):
            with self.assertRaisesRegex(annulus.ArgumentError, "^k has"):
                annulus.attention(q, array, v, BRANCHES)
        with self.assertRaisesRegex(annulus.ArgumentError, "^v is a masked array; it must be an array without a mask"):
            annulus.attention(q, k, np.ma.masked_array(v), BRANCHES)
        for results in ({"out": np.empty_like(q)}, {"lse": np.empty((2, 4, 83), "float32")}):
            for array in results.values():
                array.flags.writeable = False
            with self.assertRaisesRegex(annulus.ArgumentError, "is read-only"):
                annulus.attention(q, k, v, BRANCHES, return_lse=True, **results)

    def test_one_call(self):
        q, k, v, d_out = inputs()
        wanted = capi.compute(q, k, v, d_out, BRANCHES, True, "float32")
        self.assert_same(annulus.attention(q, k, v, BRANCHES, causal=True, return_lse=True), wanted[:2])
        self.assert_same([annulus.attention(q, k, v, branches=BRANCHES, causal=True)], wanted[:1])
        self.assert_same([annulus.attention(q, k, v, annulus.Config(BRANCHES, causal=True))], wanted[:1])
        with self.assertRaisesRegex(annulus.ArgumentError, "causal beside a config"):
            annulus.attention(q, k, v, annulus.Config(BRANCHES), causal=True)

    def test_strided_and_transposed_inputs(self):
        arrays = inputs()
        wanted = capi.compute(*arrays, BRANCHES, True, "float32")
        heads_first = [np.ascontiguousarray(array.transpose(2, 0, 1, 3)).transpose(1, 2, 0, 3) for array in arrays]
        wide = [np.zeros((*array.shape[:3], 40), "float32")[..., 8:24] for array in arrays]
        for array, source in zip(wide, arrays):
            array[...] = source
        for strided in (heads_first, wide):
            self.assertFalse(strided[0].flags.c_contiguous)
            self.assert_same(backward(*strided), wanted)

    def test_rows_that_repeat(self):
        q, k, v, _ = inputs()
        repeated = np.broadcast_to(k[:, :1], k.shape)
        self.assert_same(
            annulus.attention(q, repeated, v, BRANCHES, return_lse=True),
            annulus.attention(q, repeated.copy(), v, BRANCHES, return_lse=True),
        )

    def test_read_only_inputs(self):
        arrays = inputs()
        wanted = capi.compute(*arrays, BRANCHES, True, "float32")
        for array in arrays:
            array.flags.writeable = False
        self.assert_same(backward(*arrays), wanted)
        with self.assertRaisesRegex(annulus.ArgumentError, "out is read-only"):
            annulus.attention(*arrays[:3], BRANCHES, out=arrays[3])

    def test_results_into_given_arrays(self):
        q, k, v, d_out = inputs()
        wanted = capi.compute(q, k, v, d_out, BRANCHES, False, "float32")
        out, lse = np.full((*SHAPE[:3], 20), np.nan, "float32")[..., :16], np.full((2, 83, 4), np.nan, "float32")
        lse = lse.transpose(0, 2, 1)
        returned = annulus.attention(q, k, v, BRANCHES, out=out, lse=lse, return_lse=True)
        self.assertIs(returned[0], out)
        self.assertIs(returned[1], lse)
        self.assert_same(returned, wanted[:2])
        out.fill(np.nan)
        lse.fill(np.nan)
        self.assertIs(annulus.attention(q, k, v, BRANCHES, out=out, lse=lse), out)
        self.assert_same([out, lse], wanted[:2])
        packed = np.full((2, 83, 4, 3, 16), np.nan, "float32")
        context = annulus.Context(BRANCHES)
        kv = np.full((2, *KV_SHAPE), np.nan, "float32")
        gradients = context.backward(q, k, v, out, lse, d_out, d_q=packed[:, :, :, 1], d_k=kv[0], d_v=kv[1])
        self.assertTrue(np.shares_memory(gradients[0], packed))
        self.assert_same(gradients, wanted[2:])
        self.assertTrue(np.isnan(packed[:, :, :, ::2]).all())

    def test_without_the_batch_axis(self):
        q, k, v, d_out = (array[0] for array in inputs())
        wanted = capi.compute(q[None], k[None], v[None], d_out[None], BRANCHES, True, "float32")
        self.assert_same(backward(q, k, v, d_out), [array[0] for array in wanted])

    def test_query_window(self):
        q, k, v, d_out = inputs()
        whole = annulus.attention(q, k, v, BRANCHES, causal=True, return_lse=True)
        part = annulus.attention(q[:, 40:70], k, v, BRANCHES, causal=True, return_lse=True, query_start=40)
        np.testing.assert_allclose(part[0], whole[0][:, 40:70], rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(part[1], whole[1][..., 40:70], rtol=1e-5, atol=1e-6)

    def test_sequences(self):
        """Each sequence has the results that it has alone, bit for bit. Rows outside attend to no key."""
        q, k, v, d_out = inputs()
        for given, rows in (
            ({"sequence_starts": [3, 40, 83]}, [(slice(None), 3, 40), (slice(None), 40, 83)]),
            ({"sequence_lengths": range(41, 43)}, [(slice(0, 1), 0, 41), (slice(1, 2), 0, 42)]),
        ):
            context = annulus.Context(annulus.Config(BRANCHES, causal=True))
            out, lse = context.forward(q, k, v, **given)
            found = (out, lse, *context.backward(q, k, v, out, lse, d_out, **given))
            wanted = [np.zeros_like(array) for array in found]
            wanted[1][...] = -np.inf
            for batch, start, end in rows:
                one = backward(*(array[batch, start:end] for array in (q, k, v, d_out)))
                for i, array in enumerate(one):
                    wanted[i][(batch, slice(None), slice(start, end)) if i == 1 else (batch, slice(start, end))] = array
            self.assert_same(found, wanted)

    def test_warns_of_rows_after_the_last_sequence(self):
        q, k, v, d_out = inputs()
        large = np.zeros((1, 4100, 4, 16), "float32")
        words = "sequence_starts ends with 40 and k has {0} rows: rows 40 to {1} belong to no sequence"
        for arrays, rows in ((q, k, v), 83), ((large, large, large), 4100):
            with self.assertWarnsRegex(UserWarning, words.format(rows, rows - 1)) as caught:
                annulus.attention(*arrays, BRANCHES, sequence_starts=np.array([0, 12, 40]))
            self.assertEqual(caught.filename, __file__)
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                annulus.attention(*arrays, BRANCHES, sequence_starts=[0, 12, rows])
                annulus.attention(*arrays, BRANCHES, sequence_lengths=[40] * len(arrays[0]))

    def test_buffers(self):
        q, k, v, _ = inputs()
        wanted = annulus.attention(q, k, v, BRANCHES, return_lse=True)
        self.assert_same(annulus.attention(*map(memoryview, (q, k, v)), BRANCHES, return_lse=True), wanted)

    def test_dlpack(self):
        q, k, v, _ = inputs()
        wanted = annulus.attention(q, k, v, BRANCHES, return_lse=True)
        self.assert_same(annulus.attention(*map(Exported, (q, k, v)), BRANCHES, return_lse=True), wanted)

    def test_versioned_dlpack(self):
        q, k, v, _ = inputs()
        wanted = annulus.attention(q, k, v, BRANCHES, return_lse=True)
        capsules = [VersionedCapsule(array, read_only=True) for array in (q, k, v)]
        self.assert_same(annulus.attention(*capsules, BRANCHES, return_lse=True), wanted)
        self.assertEqual([capsule.released for capsule in capsules], [1, 1, 1])
        with self.assertRaisesRegex(annulus.ArgumentError, "out is read-only"):
            annulus.attention(q, k, v, BRANCHES, out=VersionedCapsule(np.empty_like(q), read_only=True))
        out = np.empty_like(q)
        annulus.attention(q, k, v, BRANCHES, out=VersionedCapsule(out))
        self.assert_same([out], wanted[:1])
        with self.assertRaisesRegex(BufferError, "DLPack 2"):
            annulus.attention(VersionedCapsule(q, major=2), k, v, BRANCHES)

    def test_a_used_capsule(self):
        from annulus import _capi

        capsule = inputs()[0].__dlpack__()
        owner = _capi.annulus_read_dlpack(capsule)[-1]
        self.assertIsNotNone(owner)
        for object in (capsule, owner, 1, None):
            with self.assertRaises(TypeError):
                _capi.annulus_read_dlpack(object)

    def test_jax(self):
        try:
            import jax
        except ImportError:
            self.skipTest("needs JAX")
        with jax.default_device(jax.devices("cpu")[0]):
            self.check_jax(jax)

    def check_jax(self, jax):
        q, k, v, _ = inputs()
        wanted = annulus.attention(q, k, v, BRANCHES, return_lse=True)
        found = annulus.attention(*map(jax.numpy.asarray, (q, k, v)), BRANCHES, return_lse=True)
        for array in found:
            self.assertIsInstance(array, jax.Array)
        self.assert_same([np.asarray(array) for array in found], wanted)
        half = [jax.numpy.asarray(array, "bfloat16") for array in (q, k, v)]
        self.assertEqual(annulus.attention(*half, BRANCHES).dtype, "bfloat16")
        with self.assertRaisesRegex(annulus.ArgumentError, "out is read-only"):
            annulus.attention(q, k, v, BRANCHES, out=jax.numpy.zeros(SHAPE))
        with self.assertRaisesRegex(annulus.UnsupportedError, "traced"):
            jax.jit(lambda x: annulus.attention(x, x, x, BRANCHES))(q)

    def test_cupy(self):
        try:
            import cupy

            cupy.zeros(1)
        except Exception:  # no CuPy, or no GPU for it
            self.skipTest("needs CuPy and a GPU")
        if not annulus.device_count("cuda"):
            self.skipTest("needs annulus with CUDA")
        q, k, v, _ = inputs()
        wanted = annulus.attention(q, k, v, BRANCHES, causal=True)
        with cupy.cuda.Stream():
            found = annulus.attention(*map(cupy.asarray, (q, k, v)), BRANCHES, causal=True)
            self.assertIsInstance(found, cupy.ndarray)
            np.testing.assert_allclose(found.get(), wanted, rtol=1e-4, atol=1e-5)

    def assert_sequences_refused(self, refused, *arrays):
        class OnCuda(list):
            __cuda_array_interface__ = {}

        starts = {
            r"sequence_starts\[2\] is 84; it must be at most 83, the rows of k": np.array([0, 40, 84], "int32"),
            r"sequence_starts\[0\] is 0.0; it must be an int": np.array([0, 8.0]),
            r"sequence_starts\[0\] is \[0, 3\]; it must be an int": np.array([[0, 3]]),
            "sequence_starts is 3; it must be a list of int": np.int64(3),
            "length of sequence_starts is 1; it must have the start of each sequence": [0],
            "length of sequence_starts is 0; it must have": [],
            "sequence_starts is on a CUDA device; it must be in host memory": OnCuda([0, 83]),
        }
        for words, given in starts.items():
            refused(annulus.ArgumentError, words, *arrays, sequence_starts=given)
        lengths = {
            r"sequence_lengths\[1\] is 84; it must be at most 83": (83, 84),
            "sequence_lengths has 1 numbers; without sequence_starts it must have 2, one for each batch": [5],
            "sequence_lengths is empty; it must have": [],
            "sequence_lengths is on a CUDA device": OnCuda([83, 83]),
        }
        for words, given in lengths.items():
            refused(annulus.ArgumentError, words, *arrays, sequence_lengths=given)
        refused(
            annulus.ArgumentError,
            "sequence_starts has 2 numbers and sequence_lengths 2; it must have one more",
            *arrays,
            sequence_starts=[0, 83],
            sequence_lengths=[1, 2],
        )

    def test_sequences_that_change_while_they_are_read(self):
        class Meddler:
            def __index__(self):
                numbers.clear()
                return 5

        for read in (lambda: setattr(_capi.annulus_call_options(), "sequence_starts", numbers),
                     lambda: _capi.annulus_tensor(None, 2, numbers, [1, 1, 1])):
            numbers = [0, Meddler(), 8 * 10**6]
            read()
            self.assertEqual(numbers, [])

    def test_dlpack_tensors_that_cannot_be(self):
        array = np.zeros(SHAPE, "float32")
        for ndim, has_shape in ((-1, True), (65, True), (-(2**31), True), (4, False)):
            with self.subTest(ndim=ndim, has_shape=has_shape):
                exported = VersionedCapsule(array)
                exported.managed.tensor.ndim = ndim
                if not has_shape:
                    exported.managed.tensor.shape = None
                with self.assertRaisesRegex(BufferError, f"a DLPack tensor of {ndim} dimensions"):
                    annulus.attention(exported, array, array, BRANCHES)
                self.assertEqual(exported.released, 1)

    def test_strides_that_reach_beyond_all_memory(self):
        q, k, v, _ = inputs()
        far = np.lib.stride_tricks.as_strided(q, (2**21, 4, 16), (2**43, 64, 4))
        with self.assertRaisesRegex(annulus.ArgumentError, "q has|of q reach|shape"):
            annulus.attention(far, k, v, BRANCHES)
        _capi.forward_of_arrays(None, far, far, far, None, None, None)

    def test_refusals(self):
        q, k, v, _ = inputs()

        def refused(error, words, *arrays, **options):
            with self.subTest(words):
                with self.assertRaisesRegex(error, words) as caught:
                    annulus.attention(*arrays, BRANCHES, **options)
                self.assertIsInstance(caught.exception, (annulus.Error, TypeError))

        refused(annulus.ArgumentError, "q has dtype int64; it must be float64, float32", q.astype(int), k, v)
        refused(annulus.ArgumentError, "k has the other byte order", q, k.astype(k.dtype.newbyteorder()), v)
        refused(annulus.ArgumentError, "^k has dtype float64; it must be float32$", q, k.astype(float), v)
        refused(
            annulus.ArgumentError, r"q has 2 dimensions; it must have 4, .*\[B, N, heads, D\].*, or 3", q[0, 0], k, v
        )
        refused(annulus.ArgumentError, "k has 1 dimensions; it must have 4", q, k[0, 0, 0], v)
        refused(annulus.ArgumentError, "q has 5 dimensions; it must have 4", q[None], k, v)
        refused(
            annulus.ArgumentError, r"lse has 1 dimensions; it must have 3, \[B, heads", q, k, v, lse=np.zeros(3, "f4")
        )
        refused(annulus.ArgumentError, "q has 9 rows and k has 83; .* query_start say where", q[:, :9], k, v)
        refused(annulus.ArgumentError, "q has 83 rows and k has 9; .* query_start say where", q, k[:, :9], v[:, :9])
        refused(annulus.ArgumentError, "query_start is '3'; it must be an int", q[:, :9], k, v, query_start="3")
        refused(annulus.ArgumentError, "^query_start is -1; with the 9 rows", q[:, :9], k, v, query_start=-1)
        self.assert_sequences_refused(refused, q, k, v)
        refused(annulus.ArgumentError, "^N of v is 50; it must be 83$", q, k, v[:, :50])
        refused(annulus.ArgumentError, "^N of v is 50; it must be 83$", q[0], k[0], v[0, :50])
        heads_first = [array.swapaxes(1, 2) for array in (q, k, v[:, :50])]
        refused(annulus.ArgumentError, "^N of v is 50; it must be 83$", *heads_first, layout="bhnd")
        refused(annulus.ArgumentError, "^G of k is 3; the key/value heads must", q, k.repeat(3, 2)[:, :, :3], v)
        refused(annulus.ArgumentError, "^N of lse is 9; it must be 83$", q, k, v, lse=np.empty((2, 4, 9), "float32"))
        refused(annulus.UnsupportedError, "^D of q is 12; the head dimension must be a multiple of 8", q[..., :12], k[..., :12], v[..., :12])
        refused(TypeError, "q is a list; it must be an array", q.tolist(), k, v)
        refused(TypeError, "k is a NoneType; it must be an array", q, None, v)
        structured = np.zeros(SHAPE, [("a", "f4"), ("b", "i1")])["a"]
        refused(annulus.ArgumentError, "q has a stride of 5 bytes", structured, k, v)

    def test_advice_on_strides_that_are_refused(self):
        """The copy that a message suggests is accepted."""
        q, k, v, _ = inputs()
        wanted = annulus.attention(q, k, v, BRANCHES)
        strided = {
            "q has a stride of 664 elements along D; it must be 1": np.asfortranarray(q),
            r"q has strides \(5312, -64, 16, 1\) in elements; none may be negative": q[:, ::-1].copy()[:, ::-1],
            r"q has strides \(5312, 64, 16, -1\) in elements": q[..., ::-1].copy()[..., ::-1],
            "q has a stride of 3 elements along D": np.repeat(q, 3, axis=3)[..., ::3],
        }
        for words, array in strided.items():
            with self.subTest(words), self.assertRaisesRegex(annulus.ArgumentError, words) as caught:
                annulus.attention(array, k, v, BRANCHES)
            advice = str(caught.exception).rpartition(": give ")[2]
            self.assertEqual(advice, "np.ascontiguousarray(q)")
            self.assert_same([annulus.attention(eval(advice, {"np": np, "q": array}), k, v, BRANCHES)], [wanted])
        out = np.full(SHAPE, 7, "float32", order="F")
        with self.assertRaisesRegex(annulus.ArgumentError, "out has a stride of .* 1: give a new, contiguous array"):
            annulus.attention(q, k, v, BRANCHES, out=out)
        self.assertTrue((out == 7).all())

    def test_advice_on_arrays_that_have_to_be_read(self):
        """Arrays of zarr, h5py, dask and pandas have __array__ alone."""

        class Stored:
            def __init__(self, array):
                self.array = array

            def __array__(self, dtype=None, copy=None):
                return self.array

        q, k, v, _ = inputs()
        with self.assertRaisesRegex(TypeError, r"^q is a .*Stored; (np\.asarray\(q\)) makes an array") as caught:
            annulus.attention(Stored(q), k, v, BRANCHES)
        read = eval(str(caught.exception).split("; ")[1].split(" ")[0], {"np": np, "q": Stored(q)})
        self.assert_same([annulus.attention(read, k, v, BRANCHES)], [annulus.attention(q, k, v, BRANCHES)])

    def test_dlpack_tensors_of_other_types(self):
        q, k, v, _ = inputs()
        for dtype in ("int32", "uint8", "complex64"):
            with self.assertRaisesRegex(annulus.ArgumentError, f"^k has dtype {dtype}; it must be float64, float32"):
                annulus.attention(q, Exported(k.astype(dtype)), v, BRANCHES)


if __name__ == "__main__":
    tap.main()
