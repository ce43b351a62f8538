# SPDX-License-Identifier: Apache-2.0
"""Which copies of LongNet's published code replace_longnet_attention() replaces, and what it takes from them: changed
functions, missing sources, other values returned, padding masks.

ANNULUS_TORCHSCALE and ANNULUS_GIGAPATH may name git checkouts of torchscale and Prov-GigaPath. Then their files are
compared with the table too.
"""

import ast
import os
import pathlib
import subprocess
import sys
import tempfile
import types
import unittest

import capi
import tap

try:
    import torch
except ImportError:
    tap.skip_all("needs PyTorch")

import annulus
import published
from annulus.torch import LongNetAttention, _published, replace_longnet_attention

torch.set_num_threads(1)
LENGTH = 83
NAME = "layers.0.self_attn"


def rows(seed, *shape):
    return torch.from_numpy(capi.numbers(seed, shape, dtype="float64")[0])


def encoder(kind=None, **others):
    """Makes an encoder with one layer, whose attention is of class `kind`."""
    torch.manual_seed(1)
    model = published.Encoder(published.arguments(encoder_layers=1, **others)).double()
    if kind is not None:
        model.layers[0].self_attn.__class__ = kind
    return model


def code(source, name="DilatedAttention", **names):
    """Makes a class from source that can be read: the lines of a class body, after published.DilatedAttention."""
    lines = "\n".join("    " + line for line in source.strip("\n").splitlines())
    with tempfile.NamedTemporaryFile("w", suffix=".py", delete=False) as file:
        file.write(f"class {name}(Base):\n{lines}\n")
    unittest.addModuleCleanup(os.unlink, file.name)
    scope = {"__name__": "fork", "Base": published.DilatedAttention, "torch": torch, **names}
    sys.modules["fork"] = types.SimpleNamespace(__dict__=scope)
    exec(compile(pathlib.Path(file.name).read_text(encoding="utf-8"), file.name, "exec"), scope)
    return scope[name]


SCALED = """
def forward(self, *given, **named):
    out, weights = super().forward(*given, **named)
    return out * 2, weights
"""


class ForksTest(unittest.TestCase):
    def check_left(self, kind, reason, change=lambda module: None):
        model = encoder(kind)
        change(model.layers[0].self_attn)
        before = model.layers[0].self_attn
        with self.assertWarnsRegex(UserWarning, reason):
            result = replace_longnet_attention(model)
        self.assertEqual(result.left, [NAME])
        self.assertIs(model.layers[0].self_attn, before)
        self.assertRegex(result.found[0].note, reason + ".*; if it computes .* pass assume_published=True")
        self.assertEqual(replace_longnet_attention(model, assume_published=True).replaced, [NAME])

    def test_changed_code(self):
        self.check_left(code(SCALED), r"its forward\(\) is not the published one")

        def forward(self, query, key, value, **others):
            return self.out_proj(query), None

        self.check_left(
            None,
            r"its class has a __call__\(\) of its own",
            lambda module: setattr(
                module, "__class__", type("DilatedAttention", (type(module),), {"__call__": forward})
            ),
        )

    def test_changed_functions_that_forward_calls(self):
        """A method of another class, of the module itself, and a function of the file."""
        source = """
def forward(self, query, key, value, **others):
    return self.out_proj(self.mix(query)), None

def mix(self, rows):
    return helper(rows)
"""
        same = {}
        exec("def helper(rows):\n    return rows\n", same)
        kind = code(source, helper=lambda rows: rows)
        for name in ("forward", "mix"):
            self.enter(getattr(kind, name))
        self.check_left(kind, r"the source of its helper\(\) cannot be read|its helper\(\) is not the published one")
        self.enter(published.attend)
        kind = code(source, helper=published.attend)
        self.assertEqual(replace_longnet_attention(encoder(kind)).replaced, [NAME])
        self.check_left(
            kind, r"its mix\(\) is not the published one", lambda module: setattr(module, "mix", published.arguments)
        )
        child = type("DilatedAttention", (kind,), {"mix": torch.no_grad()(kind.mix)})
        self.assertIsNotNone(_published.difference(encoder(child).layers[0].self_attn))

    def enter(self, function):
        """Lets a function count as published during the test."""
        name, found = published.digest_of(function)
        before = _published.DIGESTS.get(name)
        _published.DIGESTS[name] = (*(before or ()), found)
        self.addCleanup(_published.DIGESTS.update, {name: before or ()})

    def test_without_source(self):
        scope = {"Base": published.DilatedAttention}
        exec(f"class DilatedAttention(Base):\n    {SCALED.strip().replace(chr(10), chr(10) + '    ')}\n", scope)
        self.check_left(scope["DilatedAttention"], r"the source of its forward\(\) cannot be read")

    def test_comments_and_line_breaks_may_differ(self):
        one = "def f(self, x):\n    return self.g(x, 1.0)\n"
        other = "def f(self, x: int) -> int:\n  'Says.'\n  # a comment\n  return self.g(\n    x, 1.)\n"
        digests = {_published.digest(ast.parse(source).body[0]) for source in (one, other)}
        self.assertEqual(len(digests), 1)
        changed = one.replace("1.0", "1")
        self.assertNotIn(_published.digest(ast.parse(changed).body[0]), digests)

    def test_digests_do_not_depend_on_the_version_of_python(self):
        """The table was made once. This digest is of Python 3.9, 3.11, 3.12 and 3.13."""
        source = "def f(x, *, y: int = 2) -> int:\n    return [f'{x} is', x[1:, ::2]] if y else g(x, **y)\n"
        self.assertEqual(_published.digest(ast.parse(source).body[0]), "e7de68f76d607b3b")

    def test_published_custom_attention_with_masks_is_left(self):
        """Its class is called DilatedAttention, its forward() reads key_padding_mask."""
        source = """
def forward(self, query, key, value, incremental_state=None, key_padding_mask=None, attn_mask=None, rel_pos=None):
    if key_padding_mask is not None:
        value = value * (1 - key_padding_mask[..., None].type_as(value))
    return super().forward(query, key, value)
"""
        self.check_left(code(source), r"its forward\(\) is not the published one")


class ReturnedTest(unittest.TestCase):
    """assume_published=True gives what the replaced class gives."""

    def check(self, source, wanted, note=""):
        x = rows(3, 2, LENGTH, 64)
        model = encoder(code(source, name="DilatedAttention"))
        expected = published.DilatedAttention.forward(model.layers[0].self_attn, x, x, x)[0]
        result = replace_longnet_attention(model, assume_published=True)
        found = model.layers[0].self_attn(x, x, x)
        self.assertEqual(str(result), f"{NAME}: DilatedAttention replaced{note}")
        self.assertEqual(type(found), type(wanted))
        if not isinstance(wanted, torch.Tensor):
            self.assertEqual([value is None for value in found], [value is None for value in wanted])
            found = found[0]
        torch.testing.assert_close(found, expected)

    def test_shapes(self):
        note = "; of the values that its forward() returns only the output is computed, the others become None"
        out = torch.ones(1)
        take = "def forward(self, *given, **named):\n    attn, weights = super().forward(*given, **named)\n    return "
        for last, wanted, said in (
            ("attn, None", (out, None), ""),
            ("(attn, [weights])", (out, None), note),
            ("[attn, weights]", [out, None], note),
            ("attn, None, {}", (out, None, None), note),
            ("[attn]", [out], ""),
            ("self.out_proj(attn)", out, ""),
        ):
            with self.subTest(last):
                self.check(take + last, wanted, said)
        named = "def forward(self, *given, **named):\n    attn = self.out_proj(given[0])\n    return attn\n"
        self.check(named, out)
        self.check("def forward(self, *given, **named):\n    return super().forward(*given, **named)\n", (out, None))

    def test_shapes_that_are_not_known(self):
        for last in ("{'out': given[0]}", "attn, None\n    return attn", "attn", "make(given)"):
            with self.subTest(last):
                kind = code(f"def forward(self, *given):\n    if given:\n        return 1, None\n    return {last}")
                with self.assertWarnsRegex(UserWarning, "does not say whether it returns a tuple, a list or a tensor"):
                    replace_longnet_attention(encoder(kind), assume_published=True)


class MaskTest(unittest.TestCase):
    """Padding masks become lengths, by leave."""

    def setUp(self):
        self.x = rows(3, 3, LENGTH, 64)
        self.lengths = [LENGTH, 20, 0]
        self.mask = torch.arange(LENGTH)[None] >= torch.tensor(self.lengths)[:, None]

    def test_lengths(self):
        """In a model: each batch entry has the results, and the gradients, that it has alone."""
        model = encoder()
        replace_longnet_attention(model, key_padding_mask="as lengths")
        layer = model.layers[0]
        for mask in (self.mask, self.mask.to(torch.uint8), self.mask.long()):
            found = layer(self.x, mask)
            for entry, length in enumerate(self.lengths[:2]):
                alone = layer(self.x[entry : entry + 1, :length], None)
                torch.testing.assert_close(found[entry : entry + 1, :length], alone)
        parameter = layer.self_attn.k_proj.weight
        (both,) = torch.autograd.grad((found[0].sum() + found[1, :20].sum()), parameter)
        alone = layer(self.x[:1], None).sum() + layer(self.x[1:2, :20], None).sum()
        torch.testing.assert_close(both, *torch.autograd.grad(alone, parameter))

    def test_without_leave_masks_have_no_effect(self):
        model = encoder()
        wanted = model.layers[0](self.x, self.mask)
        replace_longnet_attention(model)
        torch.testing.assert_close(model.layers[0](self.x, self.mask), wanted)

    def test_a_mask_of_nothing(self):
        """It goes with everything, since the published encoder always passes one."""
        module = LongNetAttention(64, 4, [16, 48], [1, 3], key_padding_mask="as lengths", dtype=torch.float64)
        none = torch.zeros(3, LENGTH, dtype=torch.bool)
        wanted = module(self.x)[0]
        torch.testing.assert_close(module(self.x, key_padding_mask=none)[0], wanted)
        module(self.x, key_padding_mask=none, sequence_lengths=[3, 4, 5])
        as_published = LongNetAttention(
            64, 4, [17], [3], key_padding_mask="as lengths", misplaced_rows="as published", dtype=torch.float64
        )
        as_published(self.x, key_padding_mask=none)
        torch.testing.assert_close(module(self.x[0], key_padding_mask=none[0])[0], wanted[0])

    def test_refusals(self):
        module = LongNetAttention(64, 4, [16, 48], [1, 3], key_padding_mask="as lengths", dtype=torch.float64)
        gap = self.mask.clone()
        gap[1, 7] = True
        start = torch.zeros_like(self.mask)
        start[0, 0] = True
        for mask, reason in (
            (gap, "masks position 7 of batch entry 1 but not position 8; it must mask positions at the end alone"),
            (start, "masks position 0 of batch entry 0 but not position 1"),
            (gap[:, :5], r"has shape \[3, 5\]; it must be a tensor of shape \[3, 83\]"),
            ([0, 1], r"has type list; it must be a tensor of shape"),
            (self.mask.double(), "is torch.float64; it must be torch.bool or an integer dtype"),
        ):
            with self.assertRaisesRegex(annulus.ArgumentError, "key_padding_mask " + reason):
                module(self.x, key_padding_mask=mask)
        with self.assertRaisesRegex(annulus.ArgumentError, "pass one of them"):
            module(self.x, key_padding_mask=self.mask, sequence_lengths=self.lengths)
        with self.assertRaisesRegex(annulus.UnsupportedError, "'as lengths' with a process group; leave one"):
            group = annulus.Comm.local(1)[0]
            LongNetAttention(64, 4, [8], [1], key_padding_mask="as lengths", process_group=group)
        for make in (
            lambda word: replace_longnet_attention(encoder(), key_padding_mask=word),
            lambda word: LongNetAttention(64, 4, [8], [1], key_padding_mask=word),
        ):
            with self.assertRaisesRegex(annulus.ArgumentError, "key_padding_mask is True; it must be None or 'as leng"):
                make(True)
        with self.assertRaisesRegex(annulus.ArgumentError, "assume_published is 'no'; it must be True or False"):
            replace_longnet_attention(encoder(), assume_published="no")


class CheckoutTest(unittest.TestCase):
    """The table is that of the published sources, in all their commits."""

    def sources(self, variable, folder):
        checkout = os.environ.get(variable)
        if not checkout:
            self.skipTest(f"needs {variable}, a git checkout")

        def git(*arguments):
            return subprocess.run(
                ["git", "-C", checkout, *arguments], capture_output=True, text=True, check=True
            ).stdout

        for commit in git("log", "--format=%h", "--", *(f"{folder}/{name}.py" for name in FILES)).split():
            for name in FILES:
                if git("ls-tree", commit, f"{folder}/dilated_attention.py"):
                    yield name, ast.parse(git("show", f"{commit}:{folder}/{name}.py"))

    def check(self, variable, folder):
        found = {}
        for file, tree in self.sources(variable, folder):
            for node in ast.walk(tree):
                if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and node.name in _published.DIGESTS:
                    if node.name != "forward" or file == "dilated_attention":
                        found.setdefault(node.name, set()).add(_published.digest(node))
        self.assertEqual(set(found), set(_published.DIGESTS) - {"attend"})
        for name, digests in found.items():
            self.assertLessEqual(digests, set(_published.DIGESTS[name]), name)

    def test_torchscale(self):
        self.check("ANNULUS_TORCHSCALE", "torchscale/component")

    def test_gigapath(self):
        self.check("ANNULUS_GIGAPATH", "gigapath/torchscale/component")


FILES = ("dilated_attention", "multihead_attention", "utils", "flash_attention")

if __name__ == "__main__":
    tap.main()
