# SPDX-License-Identifier: Apache-2.0
"""Config: each option changes the result as the definition says; refusals; a config is plain data."""

import pickle
import unittest
import warnings

import capi
import tap
from capi import np

import annulus
import oracle

SHAPE = (2, 83, 4, 16)
Q, K, V = capi.numbers(3, SHAPE, SHAPE, SHAPE, dtype="float64")

# A config, and the oracle's arguments for it.
CONFIGS = {
    "tuples": (annulus.Config([(16, 1), (48, 3)]), {"branches": [{"w": 16, "r": 1}, {"w": 48, "r": 3}]}),
    "whole sequence": (annulus.Config([(0, 1)]), {"branches": [{"w": 0, "r": 1}]}),
    "causal": (annulus.Config([[16, 2]], causal=True), {"branches": [{"w": 16, "r": 2}], "causal": True}),
    "interleave": (
        annulus.Config([annulus.Branch(24, 4, phase="interleave")]),
        {"branches": [{"w": 24, "r": 4, "phase": "interleave"}]},
    ),
    "fixed": (
        annulus.Config([{"segment_length": 24, "dilation": 4, "phase": 7}]),
        {"branches": [{"w": 24, "r": 4, "phase": 7}]},
    ),
    "residue": (
        annulus.Config([annulus.Branch(24, 4, query="residue")]),
        {"branches": [{"w": 24, "r": 4, "query": "residue"}]},
    ),
    "every": (
        annulus.Config([annulus.Branch(24, 4, query="every")]),
        {"branches": [{"w": 24, "r": 4, "query": "every"}]},
    ),
    "heads": (
        annulus.Config([annulus.Branch(16, 2, heads=(1, 2)), (0, 1)]),
        {"branches": [{"w": 16, "r": 2, "first_head": 1, "head_count": 2}, {"w": 0, "r": 1}]},
    ),
    "hilbert": (
        annulus.Config([annulus.Branch(36, 3, order="hilbert", query="residue", grid_width=12)]),
        {"branches": [{"w": 36, "r": 3, "order": "hilbert", "query": "residue", "width": 12}]},
    ),
    "zero keys": (
        annulus.Config([(16, 1), (48, 5)], padding="zero_keys"),
        {"branches": [{"w": 16, "r": 1}, {"w": 48, "r": 5}], "zero_keys": True},
    ),
    "keys once": (
        annulus.Config([(16, 1), (48, 5)], key_rule="once"),
        {"branches": [{"w": 16, "r": 1}, {"w": 48, "r": 5}], "keys_once": True},
    ),
    "window": (
        annulus.Config([annulus.Branch.window(5, 2)]),
        {"branches": [{"w": 0, "r": 1, "query": "residue", "window": (5, 2)}]},
    ),
    "dilated window of phases": (
        annulus.Config([annulus.Branch.window(-1, 3, 4, heads=(1, 3), phase="interleave", query="dilated"), (16, 1)]),
        {
            "branches": [
                {"w": 0, "r": 4, "first_head": 1, "head_count": 3, "phase": "interleave", "window": (-1, 3)},
                {"w": 16, "r": 1},
            ]
        },
    ),
    "global tokens": (
        annulus.Config([(16, 1), annulus.Branch.global_tokens(3, first=40, queries=True, heads=(0, 2))]),
        {"branches": [{"w": 16, "r": 1}, {"w": 0, "r": 1, "head_count": 2, "tokens": (40, 3, True)}]},
    ),
    "sliding": (
        annulus.Config.sliding(7, dilation=2),
        {"branches": [{"w": 0, "r": 2, "query": "residue", "window": (7, 0)}], "causal": True},
    ),
    "longformer": (
        annulus.Config.longformer(6, global_tokens=2),
        {
            "branches": [
                {"w": 0, "r": 1, "query": "residue", "window": (6, 6)},
                {"w": 0, "r": 1, "tokens": (0, 2, True)},
            ],
            "keys_once": True,
        },
    ),
    "scale": (annulus.Config([(16, 1)], scale=-0.75), {"branches": [{"w": 16, "r": 1}], "scale": -0.75}),
    "reference": (annulus.Config([(16, 2)], engine="reference"), {"branches": [{"w": 16, "r": 2}]}),
    "longnet": (
        annulus.Config.longnet(8, 4, 2, 3),
        {"branches": [{"w": 8, "r": 1}, {"w": 32, "r": 2}, {"w": 128, "r": 4}]},
    ),
    "gigapath": (
        annulus.Config.gigapath(),
        {
            "branches": [{"w": w, "r": 2**i} for i, w in enumerate((1024, 5792, 32768, 185363, 1048576))],
            "zero_keys": True,
        },
    ),
    "gigapath, exact": (
        annulus.Config.gigapath(padding="exact"),
        {"branches": [{"w": w, "r": 2**i} for i, w in enumerate((1024, 5792, 32768, 185363, 1048576))]},
    ),
    "head groups": (
        annulus.Config.head_groups(4, [16, 32, 64], [1, 2, 4]),
        {
            "branches": [
                {"w": 16, "r": 1, "first_head": 0, "head_count": 2, "phase": 0},
                {"w": 32, "r": 2, "first_head": 2, "head_count": 1, "phase": 1},
                {"w": 64, "r": 4, "first_head": 3, "head_count": 1, "phase": 2},
            ]
        },
    ),
}


class ConfigTest(unittest.TestCase):
    def test_every_option_reaches_the_result(self):
        for name, (config, wanted) in CONFIGS.items():
            with self.subTest(name):
                out, lse = annulus.attention(Q, K, V, config, return_lse=True)
                wanted_out, wanted_lse = oracle.attention(Q, K, V, **wanted)
                np.testing.assert_allclose(out, wanted_out, rtol=1e-12, atol=1e-12)
                np.testing.assert_allclose(lse, wanted_lse, rtol=1e-12, atol=1e-12)

    def test_engine(self):
        for engine in ("reference", "cpu"):
            context = annulus.Context(annulus.Config([(16, 1)], engine=engine))
            self.assertEqual(context.last_engine, "auto")
            context.forward(Q, K, V)
            self.assertEqual(context.last_engine, engine)

    def test_workspace_limit(self):
        with self.assertRaisesRegex(annulus.WorkspaceError, "workspace limit is 1") as caught:
            annulus.attention(Q, K, V, [(16, 1)], workspace_limit=1)
        annulus.attention(Q, K, V, [(16, 1)], workspace_limit=caught.exception.bytes)

    def test_plain_data(self):
        for name, (config, _) in CONFIGS.items():
            with self.subTest(name):
                copy = pickle.loads(pickle.dumps(config))
                self.assertEqual(copy, config)
                self.assertEqual(hash(copy), hash(config))
                self.assertEqual(eval(repr(config), {"annulus": annulus, "Branch": annulus.Branch}), config)
                self.assertEqual(len(copy), len(config))
                changed = config.replace(causal=True, scale=0.5)
                self.assertEqual(changed.replace(causal=True), changed)
                self.assertNotEqual(changed, config)
        self.assertEqual(
            annulus.Config.gigapath().replace(branches=[(2, 1)]), annulus.Config([(2, 1)], padding="zero_keys")
        )
        self.assertEqual(len({config for config, _ in CONFIGS.values()}), len(CONFIGS))
        self.assertNotEqual(annulus.Config([(2, 1)]), 3)

    def test_options_are_read_back(self):
        branches = [
            annulus.Branch(16),
            annulus.Branch(48, 5, heads=(1, 2), phase="interleave", query="residue", order="hilbert", grid_width=6),
            annulus.Branch(0, 3, heads=(2, 0), phase=7, query="every"),
            annulus.Branch.window(5, -1, 3, heads=(2, 0), phase=7, query="dilated"),
            annulus.Branch.global_tokens(2, first=9, queries=True),
        ]
        options = dict(
            branches=branches,
            causal=True,
            padding="zero_keys",
            key_rule="once",
            head_shard=(3, 9),
            scale=-0.3,
            engine="reference",
            allow_tf32=True,
            workspace_limit=2**40,
            exchange="ring",
        )
        config = annulus.Config(**options)
        for name, value in options.items():
            self.assertEqual(getattr(config, name), value)
        self.assertIsNone(config.replace(scale=None).scale)
        self.assertEqual(annulus.Context(config).config, config)
        self.assertEqual(annulus.Config.gigapath().padding, "zero_keys")
        with self.assertRaises(AttributeError):
            _ = config.colour

    def test_refusals(self):
        cases = [
            ("branches is empty", lambda: annulus.Config([])),
            ("branches is 3; it must be a list of branches, such as", lambda: annulus.Config(3)),
            ("branches is None; it must be a list", lambda: annulus.Config(None)),
            ("branches is '16:1'; it must be a list", lambda: annulus.Config("16:1")),
            ("branches is {'w': 1}; it must be a list", lambda: annulus.Config({"w": 1})),
            (r"branches is Branch\(.*\); it must be a list", lambda: annulus.Config(annulus.Branch(16))),
            ("branches is 3; it must be a list", lambda: annulus.attention(Q, K, V, 3)),
            ("branches is None; it must be a list", lambda: annulus.attention(Q, K, V)),
            (r"a branch is \(1,\)", lambda: annulus.Config([(1,)])),
            ("a branch is 16", lambda: annulus.Config([16, 1])),
            ("a branch is {'w': 1}", lambda: annulus.Config([{"w": 1}])),
            ("dilation is 0; it must be at least 1", lambda: annulus.Config([(16, 0)])),
            ("segment_length is 1.5; it must be an int", lambda: annulus.Config([(1.5, 1)])),
            ("does not fit 64 bits", lambda: annulus.Config([(2**63, 1)])),
            (
                "phase is 'spiral'; it must be 'block', 'interleave' or an int",
                lambda: annulus.Branch(16, 2, phase="spiral"),
            ),
            ("phase is -1; it must be at least 0", lambda: annulus.Branch(16, 2, phase=-1)),
            ("right is 1.5; it must be an int", lambda: annulus.Branch.window(0, 1.5)),
            ("kind is 'ring'; it must be one of 'segments'", lambda: annulus.Branch(0, kind="ring")),
            ("global_queries is 2", lambda: annulus.Branch.global_tokens(1, queries=2)),
            ("left is '7'; it must be an int", lambda: annulus.Config.sliding("7")),
            ("global_count is -1", lambda: annulus.Config.longformer(4, global_tokens=-1)),
            ("dilation is .*; it must be an int", lambda: annulus.Config([(16, np.ones(2, int))])),
            ("causal is 'no'; it must be True or False", lambda: annulus.Config([(16, 1)], causal="no")),
            ("allow_tf32 is 2", lambda: annulus.Config([(16, 1)], allow_tf32=2)),
            (r"head_shard is 3; it must be \(first, total\)", lambda: annulus.Config([(16, 1)], head_shard=3)),
            (r"head_shard is \(8, 8\)", lambda: annulus.Config([(16, 1)], head_shard=(8, 8))),
            (
                "the call has 4 query heads, from head 5 on .* 8 heads",
                lambda: annulus.attention(Q, K, V, [(16, 1)], head_shard=(5, 8)),
            ),
            ("scale is '1'; it must be a number", lambda: annulus.Config([(16, 1)], scale="1")),
            (r"scale is \[1\]; it must be a number", lambda: annulus.Config([(16, 1)], scale=[1])),
            ("scale is 1000.*; it must be a number", lambda: annulus.Config([(16, 1)], scale=10**400)),
            ("segment_length is '16'; it must be an int", lambda: annulus.Config.longnet("16")),
            ("count is 1099511627776; it does not fit 32 bits", lambda: annulus.Config.longnet(16, count=2**40)),
            ("segment_lengths is 16; it must be a list of int", lambda: annulus.Config.head_groups(4, 16, [1])),
            ("dilations is '12'; it must be a list of int", lambda: annulus.Config.head_groups(4, [1, 2], "12")),
            (r"dilations\[1\] is 1.5; it must be an int", lambda: annulus.Config.head_groups(4, [1, 2], [1, 1.5])),
            ("segment_lengths has 0 numbers", lambda: annulus.Config.head_groups(4, [], [])),
            ("query is None", lambda: annulus.Branch(16, 2, query=None)),
            ("order is 'peano'", lambda: annulus.Branch(16, 2, order="peano")),
            (r"heads is 3; it must be \(first, count\)", lambda: annulus.Branch(16, 2, heads=3)),
            (
                "head count is 4294967296; it does not fit 32 bits",
                lambda: annulus.Config([annulus.Branch(16, heads=(0, 2**32))]),
            ),
            ("padding is 'same'", lambda: annulus.Config([(16, 1)], padding="same")),
            ("engine is 'fast'; it must be one of 'auto'", lambda: annulus.Config([(16, 1)], engine="fast")),
            ("exchange is 'post'", lambda: annulus.Config([(16, 1)], exchange="post")),
            ("scale is nan", lambda: annulus.Config([(16, 1)], scale=float("nan"))),
            ("workspace_limit is -1", lambda: annulus.Config([(16, 1)], workspace_limit=-1)),
            ("segment_lengths has 2 numbers and dilations 1", lambda: annulus.Config.head_groups(4, [1, 2], [1])),
            (
                "segment_lengths has 5 numbers; it must have from 1 to 4",
                lambda: annulus.Config.head_groups(4, [1] * 5, [1] * 5),
            ),
        ]
        for words, call in cases:
            with self.subTest(words):
                with self.assertRaisesRegex(annulus.ArgumentError, words) as caught:
                    call()
                self.assertIsInstance(caught.exception, ValueError)
                self.assertEqual((caught.exception.status, caught.exception.name), (1, "argument"))
        with self.assertRaises(TypeError):
            annulus.Config([(16, 1)], casual=True)

    def test_warns_of_exchanged_numbers(self):
        words = r"every branch .* of \[\(1, 16\), \(2, 32\)\] has a dilation above its segment length.* exchanged"
        for branches in ([(1, 16), (2, 32)], [annulus.Branch(1, 16, query="every"), annulus.Branch(2, 32, phase=5)]):
            with self.assertWarnsRegex(UserWarning, words) as caught:
                annulus.Config(branches)
            self.assertEqual(caught.filename, __file__)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for branches in ([(1, 16), (2, 2)], [(0, 16)], [(16, 1)]):
                annulus.Config(branches)

    def test_warns_of_heads_without_keys(self):
        """Warns exactly if all rows of a head have no key. LSE shows how many heads there are."""
        cases = [
            [(1, 16)],
            [(4, 8), annulus.Branch(2, 16, heads=(2, 3))],
            [annulus.Branch(4, 8, phase="interleave"), annulus.Branch(1, 3, phase="interleave", heads=(3, 0))],
            [annulus.Branch(4, 8, query="every")],
            [annulus.Branch(4, 8, query="residue")],
            [annulus.Branch(4, 8, phase=13)],
            [annulus.Branch(6, 12, order="hilbert", heads=(0, 4))],
            [(0, 40)],
            [(4, 8), (0, 1)],
            [(48, 3)],
        ]
        found = set()
        for branches in cases:
            for length, head_shard in ((3, None), (41, None), (100, None), (41, (3, 12))):
                q = np.zeros((1, length, 6, 8), np.float32)
                with warnings.catch_warnings(record=True) as caught:
                    warnings.simplefilter("always")
                    config = annulus.Config(branches, head_shard=head_shard)
                    caught.clear()
                    _, lse = annulus.attention(q, q, q, config, return_lse=True)
                empty = int((lse == -np.inf).all((0, 2)).sum())
                found.add(empty)
                with self.subTest(branches, length=length, head_shard=head_shard):
                    self.assertEqual(
                        [(str(one.message).partition(" attend ")[0], one.filename) for one in caught],
                        [(f"{empty} of 6 heads", __file__)] * (empty > 0),
                    )
        self.assertGreater(len(found), 3)

    def test_only_what_is_public_is_listed(self):
        listed = {name for name in dir(annulus) if not name.startswith("__")}
        self.assertEqual(listed, {*annulus.__all__, "jax", "slides", "torch", "types"})
        for name in annulus.__all__:
            getattr(annulus, name)

    def test_hilbert_curve(self):
        curve = annulus.hilbert_curve(12, 4)
        self.assertEqual(sorted(curve), list(range(12)))
        self.assertTrue((np.abs(np.diff(curve // 4)) + np.abs(np.diff(curve % 4)) == 1).all())
        with self.assertRaisesRegex(annulus.ArgumentError, "width"):
            annulus.hilbert_curve(12, 5)
        with self.assertRaisesRegex(annulus.ArgumentError, "length is 1.5; it must be an int"):
            annulus.hilbert_curve(1.5)
        with self.assertRaisesRegex(annulus.ArgumentError, "width is '4'; it must be an int"):
            annulus.hilbert_curve(12, "4")
        with self.assertRaisesRegex(annulus.OutOfMemoryError, "length is 4611686018427387904; there is no memory"):
            annulus.hilbert_curve(2**62)

    def test_version(self):
        self.assertIn(annulus.__version__, annulus.build_info())
        self.assertEqual(annulus.device_count("cpu"), 1)
        with self.assertRaisesRegex(annulus.ArgumentError, "kind is 'tpu'"):
            annulus.device_count("tpu")
        with self.assertRaisesRegex(annulus.ArgumentError, r"kind is \['cpu'\]; it must be one of 'cpu', 'cuda'"):
            annulus.device_count(["cpu"])


if __name__ == "__main__":
    tap.main()
