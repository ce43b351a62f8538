# SPDX-License-Identifier: Apache-2.0
"""The .npy files that annulus reads and writes. With branch 1:1 a query attends to its own position alone, so O is V."""

import struct
import unittest
import warnings

from program import DTYPES, ProgramTest, from_bfloat16, load, np, round_to_bfloat16, run, save
import tap

try:
    import ml_dtypes
except ImportError:
    ml_dtypes = None

NUMPY = {"float64": "<f8", "float32": "<f4", "float16": "<f2", "bfloat16": "<V2"}


class NpyTest(ProgramTest):
    def copy_v(self, values, dtype, *options):
        """Returns O of V with queries and keys of zeros."""
        for name in "qk":
            save(self.path(name + ".npy"), np.zeros(values.shape, np.float32), dtype)
        save(self.path("v.npy"), values, dtype)
        result = run(*self.attend_arguments("--branch", "1:1", *options))
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        return load(self.path("o.npy"))

    def test_every_dtype_round_trips(self):
        values = self.random.standard_normal((2, 33, 2, 8))
        for dtype in DTYPES:
            with self.subTest(dtype):
                self.copy_v(values, dtype)
                self.assertEqual(self.path("o.npy").read_bytes(), self.path("v.npy").read_bytes())

    def test_numbers_start_at_a_multiple_of_64_bytes(self):
        for tokens in (1, 12, 123, 1234, 12345):
            self.copy_v(np.zeros((tokens, 1, 8)), "float16")
            with open(self.path("o.npy"), "rb") as file:
                self.assertEqual(np.lib.format.read_magic(file), (1, 0))
                self.assertEqual(np.lib.format.read_array_header_1_0(file),
                                 ((tokens, 1, 8), False, np.dtype("float16")))
                self.assertEqual(file.tell() % 64, 0)

    def test_new_files_have_the_usual_permissions(self):
        self.copy_v(np.zeros((5, 1, 8)), "float32")
        self.assertEqual(self.path("o.npy").stat().st_mode, self.path("v.npy").stat().st_mode)

    def test_void_of_two_bytes_is_bfloat16(self):
        codes = round_to_bfloat16(self.random.standard_normal((5, 1, 8)))
        for name in "qkv":
            np.save(self.path(name + ".npy"), codes.view("V2"))
        self.assertIn(b"'|V2'", self.path("v.npy").read_bytes())
        self.assertEqual(run(*self.attend_arguments("--branch", "1:1")).returncode, 0)
        out, dtype = load(self.path("o.npy"))
        self.assertEqual(dtype, "bfloat16")
        np.testing.assert_array_equal(out, from_bfloat16(codes))

    @unittest.skipIf(ml_dtypes is None, "needs ml_dtypes")
    def test_bfloat16_is_what_ml_dtypes_writes(self):
        values = self.random.standard_normal((5, 1, 8)).astype(ml_dtypes.bfloat16)
        for name in "qkv":
            np.save(self.path(name + ".npy"), values)
        self.assertEqual(run(*self.attend_arguments("--branch", "1:1")).returncode, 0)
        self.assertEqual(self.path("o.npy").read_bytes(), self.path("v.npy").read_bytes())

    def every_header(self, shape, dtype):
        """Headers that say the same in all forms that the format allows."""
        text = f"{{'descr': '{NUMPY[dtype]}', 'fortran_order': False, 'shape': {shape}, }}"
        other = f'{{ "shape":{shape},"fortran_order" : False , "descr":"{NUMPY[dtype]}"}}'
        for dictionary in (text, other):
            for version, length in ((1, "<H"), (2, "<I"), (3, "<I")):
                for more_spaces in (0, 1, 3, 64):
                    padded = (dictionary + " " * more_spaces + "\n").encode()
                    yield b"\x93NUMPY" + bytes((version, 0)) + struct.pack(length, len(padded)) + padded

    def test_every_form_of_header(self):
        shape = (1, 7, 2, 8)
        values = self.random.standard_normal(shape)
        for dtype in ("float64", "bfloat16"):
            expected = self.copy_v(values, dtype)[0]
            numbers = self.path("v.npy").read_bytes()[-values.size * (8 if dtype == "float64" else 2):]
            for header in self.every_header(shape, dtype):
                with self.subTest(header=header):
                    self.path("v.npy").write_bytes(header + numbers)
                    self.assertEqual(run(*self.attend_arguments("--branch", "1:1")).returncode, 0)
                    np.testing.assert_array_equal(load(self.path("o.npy"))[0], expected)

    def test_every_half_widens_exactly(self):
        codes = np.arange(65536, dtype=np.uint16)
        for dtype, wanted in (("float16", codes.view(np.float16)), ("bfloat16", from_bfloat16(codes))):
            with self.subTest(dtype):
                for name in "qk":
                    save(self.path(name + ".npy"), np.zeros((8192, 1, 8), np.float32), dtype)
                with open(self.path("v.npy"), "wb") as file:
                    header = {"descr": NUMPY[dtype], "fortran_order": False, "shape": (8192, 1, 8)}
                    np.lib.format.write_array_header_1_0(file, header)
                    file.write(codes.tobytes())
                result = run(*self.attend_arguments("--branch", "1:1", "--dtype", "float64"))
                self.assertEqual(result.returncode, 0, result.stderr)
                np.testing.assert_array_equal(load(self.path("o.npy"))[0].ravel(), wanted)

    def test_narrowing_rounds_to_nearest_even(self):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            halves = np.arange(65536, dtype=np.uint16).view(np.float16).astype(np.float64)
            singles = np.concatenate([from_bfloat16(np.arange(65536, dtype=np.uint16)),
                                      self.random.integers(0, 2 ** 32, 65536, np.uint32).view(np.float32)])
            finite = np.sort(halves[np.isfinite(halves)])
            ties = (finite[1:] + finite[:-1]) / 2
            values = np.concatenate([halves, ties, np.nextafter(ties, np.inf), np.nextafter(ties, -np.inf),
                                     [65519.99, 65520, -65520, 1e300, 5e-324, -5e-324, -0.0], singles])
            values = np.resize(values, -(-values.size // 8) * 8).reshape(-1, 1, 8)
            wanted = values.astype(np.float16)
        out, _ = self.copy_v(values, "float64", "--dtype", "float16")
        np.testing.assert_array_equal(out, wanted.astype(np.float64))

        singles = np.resize(singles, (singles.size // 8, 1, 8))
        with np.errstate(invalid="ignore"):
            ties = from_bfloat16(round_to_bfloat16(singles))
            near_ties = (ties.view(np.uint32) | 0x8000) + np.arange(-1, 7, dtype=np.int32).astype(np.uint32)
        for numbers in (singles, near_ties.view(np.float32)):
            out, _ = self.copy_v(numbers, "float32", "--dtype", "bfloat16")
            np.testing.assert_array_equal(out, from_bfloat16(round_to_bfloat16(numbers)).astype(np.float64))

    def test_narrowing_of_double_to_bfloat16_rounds_once(self):
        # Just above a tie. Rounded to float32 first, it would become the tie and then the even neighbour below.
        values = np.full((2, 1, 8), 1 + 2.0 ** -8 + 2.0 ** -40)
        out, _ = self.copy_v(values, "float64", "--dtype", "bfloat16")
        np.testing.assert_array_equal(out, np.full(values.shape, 1 + 2.0 ** -7))


if __name__ == "__main__":
    tap.main()
