# SPDX-License-Identifier: Apache-2.0
"""annulus attend: compares its results with the definition, for every option that changes them."""

import ctypes
import os
import unittest

from c_structs import Branch
from program import DTYPES, SANITIZED, ProgramTest, cuda_device_count, load, np, rounded, run, save
import oracle
import tap

# The command line's options and the oracle's arguments; H = 4 query heads.
PATTERNS = {
    "dense": (["--branch", "0:1"], {"branches": [{"w": 0, "r": 1}]}),
    "longnet": (["--branch", "16:1", "--branch", "48:3"], {"branches": [{"w": 16, "r": 1}, {"w": 48, "r": 3}]}),
    "causal": (["--branch", "16:1", "--branch", "32:2", "--causal"],
               {"branches": [{"w": 16, "r": 1}, {"w": 32, "r": 2}], "causal": True}),
    "preset": (["--preset", "longnet:8,4,2,3"],
               {"branches": [{"w": 8, "r": 1}, {"w": 32, "r": 2}, {"w": 128, "r": 4}]}),
    "preset and branch": (["--branch", "5:1", "--preset", "longnet:8,4,2,1"],
                          {"branches": [{"w": 8, "r": 1}, {"w": 5, "r": 1}]}),
    "interleave": (["--branch", "24:4,phase=interleave"], {"branches": [{"w": 24, "r": 4, "phase": "interleave"}]}),
    "fixed": (["--branch", "24:4,phase=fixed:7"], {"branches": [{"w": 24, "r": 4, "phase": 7}]}),
    "residue": (["--branch", "24:4,query=residue"], {"branches": [{"w": 24, "r": 4, "query": "residue"}]}),
    "every": (["--branch", "24:4,query=every"], {"branches": [{"w": 24, "r": 4, "query": "every"}]}),
    "heads": (["--branch", "16:2,heads=1-2", "--branch", "0:1,heads=3"],
              {"branches": [{"w": 16, "r": 2, "first_head": 1, "head_count": 2},
                            {"w": 0, "r": 1, "first_head": 3, "head_count": 1}]}),
    "head groups": (["--branch", "16:1", "--branch", "32:2", "--branch", "64:4,query=every", "--head-groups"],
                    {"branches": [{"w": 16, "r": 1, "first_head": 0, "head_count": 2, "phase": 0},
                                  {"w": 32, "r": 2, "first_head": 2, "head_count": 1, "phase": 1},
                                  {"w": 64, "r": 4, "first_head": 3, "head_count": 1, "phase": 2, "query": "every"}]}),
    "hilbert": (["--branch", "36:3,order=hilbert,query=residue"],
                {"branches": [{"w": 36, "r": 3, "order": "hilbert", "query": "residue"}]}),
    "hilbert width": (["--branch", "36:3,order=hilbert,width=12,query=residue"],
                      {"branches": [{"w": 36, "r": 3, "order": "hilbert", "width": 12, "query": "residue"}]}),
    "zero keys": (["--branch", "16:1", "--branch", "48:5", "--padding", "zero-keys"],
                  {"branches": [{"w": 16, "r": 1}, {"w": 48, "r": 5}], "zero_keys": True}),
    "gigapath": (["--preset", "gigapath"],
                 {"branches": [{"w": w, "r": 2 ** i} for i, w in enumerate((1024, 5792, 32768, 185363, 1048576))],
                  "zero_keys": True}),
    "gigapath, exact": (["--preset", "gigapath", "--padding", "exact"],
                        {"branches": [{"w": w, "r": 2 ** i} for i, w in enumerate((1024, 5792, 32768, 185363, 1048576))]}),
    "keys once": (["--branch", "16:1", "--branch", "48:5", "--key-rule", "once"],
                  {"branches": [{"w": 16, "r": 1}, {"w": 48, "r": 5}], "keys_once": True}),
    "keys of each branch": (["--branch", "16:1", "--branch", "48:5", "--key-rule", "each-branch"],
                            {"branches": [{"w": 16, "r": 1}, {"w": 48, "r": 5}]}),
    "window": (["--branch", "window:5,2:3,heads=1-2", "--branch", "16:1"],
               {"branches": [{"w": 0, "r": 3, "query": "residue", "window": (5, 2), "first_head": 1, "head_count": 2},
                             {"w": 16, "r": 1}]}),
    "window of all before": (["--branch", "window:all,0:2,query=dilated", "--branch", "8:1"],
                             {"branches": [{"w": 0, "r": 2, "window": (-1, 0)}, {"w": 8, "r": 1}]}),
    "global positions": (["--branch", "window:4,4", "--branch", "global:3,first=20,queries=all", "--key-rule", "once"],
                         {"branches": [{"w": 0, "r": 1, "query": "residue", "window": (4, 4)},
                                       {"w": 0, "r": 1, "tokens": (20, 3, True)}], "keys_once": True}),
    "global keys": (["--branch", "global:3", "--branch", "8:1"],
                    {"branches": [{"w": 0, "r": 1, "tokens": (0, 3, False)}, {"w": 8, "r": 1}]}),
    "scale": (["--branch", "16:1", "--scale", "-0.75"], {"branches": [{"w": 16, "r": 1}], "scale": -0.75}),
    "reference": (["--branch", "16:2", "--engine", "reference"], {"branches": [{"w": 16, "r": 2}]}),
    "cpu": (["--branch", "16:2", "--engine", "cpu", "--threads", "3"],
            {"branches": [{"w": 16, "r": 2}]}),
}

UNIT = {"float64": 2.0 ** -53, "float32": 2.0 ** -24, "float16": 2.0 ** -11, "bfloat16": 2.0 ** -8}
# Accumulation: float64 for float64, float32 for all others.
TOLERANCE = {"float64": 1e-13, "float32": 1e-5, "float16": 1e-5, "bfloat16": 1e-5}


class AttendTest(ProgramTest):
    def assert_close(self, found, wanted, dtype):
        self.assertEqual(found.shape, wanted.shape)
        finite = np.isfinite(wanted)
        np.testing.assert_array_equal(found[~finite], wanted[~finite])
        largest = np.abs(wanted[finite]).max(initial=0)
        error = np.abs(found[finite] - wanted[finite]).max(initial=0)
        self.assertLessEqual(error, (TOLERANCE[dtype] + 2 * UNIT[dtype]) * max(largest, 1))

    def test_patterns(self):
        q, k, v = self.save_inputs((2, 83, 4, 16))
        for name, (options, arguments) in PATTERNS.items():
            with self.subTest(name):
                wanted_out, wanted_lse = oracle.attention(q, k, v, **arguments)
                empty = int(np.isinf(wanted_lse).all((0, 2)).sum())  # heads
                warning = f"{empty} of 4 heads attends to no key, and their results are 0; " if empty else ""
                (out, _), (lse, _) = self.attend(*options, warning=warning)
                self.assert_close(out, wanted_out, "float32")
                self.assert_close(lse, wanted_lse, "float32")

    def test_patterns_differ(self):
        q, k, v = self.save_inputs((2, 83, 4, 16))
        results = [oracle.attention(q, k, v, **arguments)[0] for name, (_, arguments) in PATTERNS.items()
                   if name not in ("reference", "cpu")]
        for i, one in enumerate(results):
            for other in results[:i]:
                self.assertGreater(np.abs(one - other).max(), 1e-3)

    def test_dtypes(self):
        for dtype in DTYPES:
            with self.subTest(dtype):
                q, k, v = self.save_inputs((1, 50, 4, 8), dtype=dtype)
                (out, out_dtype), (lse, lse_dtype) = self.attend("--branch", "16:1", "--branch", "32:2", "--causal")
                self.assertEqual(out_dtype, dtype)
                self.assertEqual(lse_dtype, "float64" if dtype == "float64" else "float32")
                wanted_out, wanted_lse = oracle.attention(
                    q, k, v, [{"w": 16, "r": 1}, {"w": 32, "r": 2}], causal=True)
                self.assert_close(out, wanted_out, dtype)
                self.assert_close(lse, wanted_lse, "float64" if dtype == "float64" else "float32")

    def test_conversion_before_computing(self):
        q, k, v = self.save_inputs((1, 40, 2, 8), dtype="float64")
        for dtype in DTYPES:
            with self.subTest(dtype):
                (out, out_dtype), _ = self.attend("--branch", "16:1", "--dtype", dtype)
                self.assertEqual(out_dtype, dtype)
                wanted, _ = oracle.attention(*(rounded(a, dtype) for a in (q, k, v)), [{"w": 16, "r": 1}])
                self.assert_close(out, wanted, dtype)

    def test_conversion_of_mixed_files(self):
        self.save_inputs((1, 40, 2, 8))
        save(self.path("k.npy"), load(self.path("k.npy"))[0], "float64")
        (_, dtype), _ = self.attend("--branch", "16:1", "--dtype", "float16")
        self.assertEqual(dtype, "float16")

    def test_grouped_heads(self):
        q, k, v = self.save_inputs((2, 40, 6, 8), (2, 40, 2, 8))
        (out, _), (lse, _) = self.attend("--branch", "16:1", "--branch", "0:2")
        wanted_out, wanted_lse = oracle.attention(q, k, v, [{"w": 16, "r": 1}, {"w": 0, "r": 2}])
        self.assert_close(out, wanted_out, "float32")
        self.assert_close(lse, wanted_lse, "float32")

    def test_three_dimensions_are_one_batch_entry(self):
        q, k, v = self.save_inputs((40, 2, 8))
        (out, _), (lse, _) = self.attend("--branch", "16:1")
        wanted_out, wanted_lse = oracle.attention(q[None], k[None], v[None], [{"w": 16, "r": 1}])
        self.assert_close(out, wanted_out[0], "float32")
        self.assert_close(lse, wanted_lse[0], "float32")

    def test_query_window(self):
        q, k, v = self.save_inputs((2, 7, 2, 8), (2, 40, 2, 8))
        (out, _), (lse, _) = self.attend("--branch", "16:1", "--branch", "0:2", "--causal", "--query-start", "30")
        wanted_out, wanted_lse = oracle.attention(
            q, k, v, [{"w": 16, "r": 1}, {"w": 0, "r": 2}], causal=True, query_start=30)
        self.assert_close(out, wanted_out, "float32")
        self.assert_close(lse, wanted_lse, "float32")

    def test_warnings_of_heads_without_keys(self):
        """Warns of heads without keys, for every rule and for branches whose W and R were swapped."""
        q, k, v = self.save_inputs((1, 50, 8, 8))
        for branches in (["1:2048"], ["1:4,phase=interleave"], ["2:6,phase=interleave,query=every"], ["3:5,phase=fixed:4"],
                         ["3:5,phase=fixed:7"], ["1:3,query=residue"], ["1:4", "0:3,heads=4-6"], ["8:2,heads=0-1"],
                         ["0:60"], ["64:60,heads=2-7"], ["2:3"], ["4:8", "1:4,heads=6-7,phase=block"]):
            with self.subTest(branches):
                parsed = []
                for text in branches:
                    (w, r), properties = text.split(",")[0].split(":"), dict(p.split("=") for p in text.split(",")[1:])
                    branch = {"w": int(w), "r": int(r)}
                    if "heads" in properties:
                        first, last = map(int, properties["heads"].split("-"))
                        branch.update(first_head=first, head_count=last - first + 1)
                    if "phase" in properties and properties["phase"] != "block":
                        branch["phase"] = properties["phase"].replace("fixed:", "")
                    if "query" in properties:
                        branch["query"] = properties["query"]
                    parsed.append(branch)
                keys = sum(oracle.branch_keys(50, 8, **branch)[0] for branch in parsed)
                empty = int((keys.sum((1, 2)) == 0).sum())
                warning = f"{empty} of 8 heads attend{'s' * (empty == 1)} to no key" if empty else ""
                self.attend(*(word for text in branches for word in ("--branch", text)), warning=warning)
                result = run("map", "--q", self.path("q.npy"), "--k", self.path("k.npy"), "--out", self.path("mass.npy"),
                             *(word for text in branches for word in ("--branch", text)))
                self.assert_done(result, warning)
        self.attend("--branch", "1:2048", warning="7 of 8 heads attend to no key, and their results are 0; ")

    def test_warning_of_another_layout(self):
        for shape, warning in (((1, 8, 300, 8), "--k is taken for 8 rows of 300 heads; "), ((8, 300, 8), "--k is taken "),
                               ((1, 1, 129, 8), "--k is taken for 1 row of 129 heads; arrays must be [B, N, H, D]"),
                               ((1, 128, 128, 8), ""), ((1, 8, 128, 8), ""), ((1, 300, 300, 8), "")):
            with self.subTest(shape):
                self.save_inputs(shape)
                self.attend("--branch", "0:1", warning=warning)

    def assert_sequences(self, options, sequences, shape=(2, 60, 2, 8), warning=""):
        """`sequences`: the batch entries and the rows of each."""
        q, k, v = self.save_inputs(shape)
        (out, _), (lse, _) = self.attend("--branch", "16:1", "--branch", "0:3", "--causal", *options, warning=warning)
        wanted_out, wanted_lse = np.zeros_like(out), np.full_like(lse, -np.inf)
        for entries, rows in sequences:
            alone_out, alone_lse = oracle.attention(
                *(array[entries, rows] for array in (q, k, v)), [{"w": 16, "r": 1}, {"w": 0, "r": 3}], causal=True)
            wanted_out[entries, rows], wanted_lse[entries, :, rows] = alone_out, alone_lse
        self.assert_close(out, wanted_out, "float32")
        self.assert_close(lse, wanted_lse, "float32")

    def test_packed_sequences(self):
        both = slice(0, 2)
        wanted = [(both, slice(3, 20)), (both, slice(20, 21)), (both, slice(21, 55))]
        outside = "--starts: rows 0 to 2 and 55 to 59 are in no sequence, and their results are 0"
        self.assert_sequences(["--starts", "3,20,21,21,55"], wanted, warning=outside)
        wanted[2] = (both, slice(21, 50))
        self.assert_sequences(["--starts", "3,20,21,55", "--lengths", "17,1,29"], wanted, warning=outside)
        self.assert_sequences(["--starts", "0,20,60"], [(both, slice(0, 20)), (both, slice(20, 60))])
        self.assert_sequences(["--starts", "0,20,59"], [(both, slice(0, 20)), (both, slice(20, 59))],
                              warning="--starts: rows 59 to 59 are in no sequence")

    def test_padded_batches(self):
        self.assert_sequences(["--lengths", "60,23"], [(slice(0, 1), slice(0, 60)), (slice(1, 2), slice(0, 23))])
        self.assert_sequences(["--lengths", "0,7"], [(slice(1, 2), slice(0, 7))])

    def test_permissions_and_limits_change_nothing_on_a_cpu(self):
        self.save_inputs((1, 40, 2, 8))
        self.attend("--branch", "16:1")
        wanted = self.path("o.npy").read_bytes()
        self.path("o.npy").unlink()
        self.attend("--branch", "16:1", "--device", "cpu", "--tf32", "--workspace-limit", "64M")
        self.assertEqual(self.path("o.npy").read_bytes(), wanted)

    def test_cuda(self):
        if cuda_device_count() == 0:
            self.skipTest("needs a CUDA device")
        pattern, arguments = PATTERNS["longnet"]
        for dtype in ("float32", "float16", "bfloat16"):
            for batch in ((), (2,)):
                with self.subTest(dtype=dtype, batch=batch):
                    q, k, v = (a.reshape(-1, 83, 4, 16) for a in self.save_inputs((*batch, 83, 4, 16), dtype=dtype))
                    (out, out_dtype), (lse, lse_dtype) = self.attend(*pattern, "--device", "cuda")
                    self.assertEqual((out_dtype, lse_dtype), (dtype, "float32"))
                    wanted_out, wanted_lse = oracle.attention(q, k, v, **arguments)
                    self.assert_close(out.reshape(q.shape), wanted_out, dtype)
                    self.assert_close(lse.reshape(wanted_lse.shape), wanted_lse, "float32")

    def test_cuda_refuses_float64(self):
        if cuda_device_count() == 0:
            self.skipTest("needs a CUDA device")
        self.save_inputs((1, 40, 2, 8), dtype="float64")
        before = self.names()
        self.assert_refused(run(*self.attend_arguments("--branch", "16:1", "--device", "cuda")), says="float64")
        self.assertEqual(self.names(), before)

    def test_hilbert_without_dilation_is_linear(self):
        self.save_inputs((1, 90, 2, 8))
        (linear, _), _ = self.attend("--branch", "36:1")
        (hilbert, _), _ = self.attend("--branch", "36:1,order=hilbert")
        self.assert_close(hilbert, linear, "float32")

    def test_lse_is_optional_and_changes_nothing(self):
        self.save_inputs((1, 40, 2, 8))
        self.attend("--branch", "16:1")
        with_lse = self.path("o.npy").read_bytes()
        self.path("o.npy").unlink()
        self.path("lse.npy").unlink()
        self.assertEqual(run(*self.attend_arguments("--branch", "16:1")).returncode, 0)
        self.assertEqual(self.path("o.npy").read_bytes(), with_lse)
        self.assertEqual(self.names(), ["k.npy", "o.npy", "q.npy", "v.npy"])

    def test_outputs_replace_older_files(self):
        q, k, v = self.save_inputs((1, 40, 2, 8))
        for name in ("o.npy", "lse.npy"):
            self.path(name).write_bytes(b"older")
        (out, _), (lse, _) = self.attend("--branch", "16:1")
        wanted_out, wanted_lse = oracle.attention(q, k, v, [{"w": 16, "r": 1}])
        self.assert_close(out, wanted_out, "float32")
        self.assert_close(lse, wanted_lse, "float32")

    def test_output_through_a_link_replaces_its_target(self):
        self.save_inputs((1, 40, 2, 8))
        self.path("target").mkdir()
        self.path("target/real.npy").write_bytes(b"older")
        self.path("link.npy").symlink_to("target/real.npy")
        result = run(*self.attend_arguments("--branch", "16:1", out="link.npy"))
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        self.assertTrue(self.path("link.npy").is_symlink())
        self.assertEqual(load(self.path("target/real.npy"))[0].shape, (1, 40, 2, 8))


class Tensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("dtype", ctypes.c_int), ("ndim", ctypes.c_int32),
                ("shape", ctypes.c_int64 * 4), ("stride", ctypes.c_int64 * 4)]

    @classmethod
    def view(cls, array):
        strides = [stride // array.itemsize for stride in array.strides]
        return cls(array.ctypes.data, {"float64": 1, "float32": 2}[array.dtype.name], array.ndim,
                   (ctypes.c_int64 * 4)(*array.shape), (ctypes.c_int64 * 4)(*strides))


def one_call(q, k, v, branches):
    """Returns O and LSE of one annulus_forward() call on everything."""
    library = ctypes.CDLL(os.environ["ANNULUS_LIBRARY"])
    config, context = ctypes.c_void_p(), ctypes.c_void_p()
    out, lse = np.empty_like(q), np.empty((q.shape[0], q.shape[2], q.shape[1]), q.dtype)
    statuses = [library.annulus_config_create(ctypes.byref(config))]
    for w, r in branches:
        statuses.append(library.annulus_config_add_branch(config, ctypes.byref(Branch.plain(w, r)), None))
    statuses.append(library.annulus_context_create(ctypes.byref(context), 1, 0))
    statuses.append(library.annulus_context_set_config(context, config))
    tensors = [ctypes.byref(Tensor.view(a)) for a in (q, k, v, out, lse)]
    statuses.append(library.annulus_forward(context, *tensors, None))
    library.annulus_context_destroy(context)
    library.annulus_config_destroy(config)
    assert not any(statuses), statuses
    return out, lse


@unittest.skipIf(SANITIZED, "a library with sanitizers cannot be loaded by Python")
class PiecesTest(ProgramTest):
    """Jobs so large that attend divides them into pieces: 5e10 FLOPs a thread, cut at multiples of 16384 rows."""

    def test_query_windows_give_the_same_bits(self):
        tokens, dim = 16384 + 8192 + 37, 128
        flops = 4 * dim * (8192 ** 2 * 3 + 37 ** 2)
        self.assertGreater(flops, 2 * 5e10)
        q, k, v = (a.astype(np.float32) for a in self.save_inputs((1, tokens, 1, dim)))
        (out, _), (lse, _) = self.attend("--branch", "8192:1", "--branch", "16384:4", "--threads", "1")
        wanted_out, wanted_lse = one_call(q, k, v, [(8192, 1), (16384, 4)])
        np.testing.assert_array_equal(out, wanted_out)
        np.testing.assert_array_equal(lse, wanted_lse)

    def test_batch_entries_give_the_same_bits(self):
        shape = (7, 4096, 2, 64)
        self.assertGreater(shape[0] * 4 * 4096 ** 2 * 2 * 64, 5e10)
        q, k, v = (a.astype(np.float32) for a in self.save_inputs(shape))
        (out, _), (lse, _) = self.attend("--branch", "0:1", "--threads", "1")
        wanted_out, wanted_lse = one_call(q, k, v, [(0, 1)])
        np.testing.assert_array_equal(out, wanted_out)
        np.testing.assert_array_equal(lse, wanted_lse)


if __name__ == "__main__":
    tap.main()
