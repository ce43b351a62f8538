# SPDX-License-Identifier: Apache-2.0
"""Measures time and memory of a slide encoder on one GPU: Prov-GigaPath's branches, 16 heads of 48, float16.

  attention  of given q, k and v, against LongNet's published procedure over PyTorch's FlashAttention-2 (longnet-flash
             of peers.py); forward, and forward with backward
  mass       of all keys, from the LSE of forward, against backward
  module     LongNetAttention's forward, against each of its parts alone
  host       how long a module's call of 1,000 positions holds the host, and how long it takes, against its parts
  memory     bytes for each tile in an encoder of 12 layers, of the published structure: PyTorch's peak, and workspace

In each round all contenders run once, in a random order: two calls, then seven timed calls in a row, by CUDA events.
The tables show medians. PYTHONPATH names the built package (build/.../bindings/python). It is not part of the test
suite. Exit status: 0; 1 if results disagree; 77 without PyTorch or a GPU.
"""

import argparse
import pathlib
import random
import statistics
import sys
import time

import peers

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "bindings/python"))

torch = peers.torch
TOKENS = (70001, 10001)
WIDTH, HEADS, DIM = 768, 16, 48
ROUNDS = 5


def milliseconds(works):
    """Returns the median time of each work, {name: milliseconds}."""
    seconds = {name: [] for name in works}
    for _ in range(ROUNDS):
        for name in random.sample(list(works), len(works)):
            peers.timed(works[name], 2)
            seconds[name] += peers.timed(works[name], 7)
    return {name: 1e3 * statistics.median(times) for name, times in seconds.items()}


def inputs(tokens):
    """Returns q, k, v and a gradient of the output."""
    return [torch.randn(1, tokens, HEADS, DIM, dtype=torch.float16, device="cuda") for _ in range(4)]


def attention(config):
    from annulus.torch import dilated_attention

    print(f"\n{'attention, q, k, v given':26}{'tokens':>8}{'annulus':>12}{'published way':>15}{'ratio':>8}")
    for tokens in TOKENS:
        *qkv, d_out = inputs(tokens)
        leaves = [x.clone().requires_grad_() for x in qkv]
        published_way = peers.LongNet(peers.FlashAttention(False), peers.GIGAPATH)
        ways = {
            "annulus": lambda q, k, v: dilated_attention(q, k, v, config),
            "published": lambda q, k, v: published_way.forward(q, k, v)[0],
        }
        error = peers.disagreement(*([way(*qkv)] for way in ways.values()))
        if not error <= 2 ** -8:
            sys.exit(f"the outputs of {tokens} tokens disagree by {error:.2g} of the norm")

        def both_passes(way):
            return lambda: torch.autograd.grad(way(*leaves), leaves, d_out)

        for name, works in (
            ("forward", {key: lambda way=way: way(*qkv) for key, way in ways.items()}),
            ("forward and backward", {key: both_passes(way) for key, way in ways.items()}),
        ):
            found = milliseconds(works)
            print(f"{name:26}{tokens:>8}{found['annulus']:>9.3f} ms{found['published']:>12.3f} ms"
                  f"{found['published'] / found['annulus']:>8.2f}", flush=True)


def mass(config):
    from annulus.torch import attention_mass, dilated_attention

    print(f"\n{'mass of all keys':26}{'tokens':>8}{'mass':>12}{'backward':>15}{'ratio':>8}")
    for tokens in TOKENS:
        *qkv, d_out = inputs(tokens)
        leaves = [x.requires_grad_() for x in qkv]
        out, lse = dilated_attention(*leaves, config, return_lse=True)
        lse = lse.detach()
        found = milliseconds({
            "mass": lambda: attention_mass(*qkv[:2], config, lse=lse),
            "backward": lambda: torch.autograd.grad(out, leaves, d_out, retain_graph=True),
        })
        print(f"{'':26}{tokens:>8}{found['mass']:>9.3f} ms{found['backward']:>12.3f} ms"
              f"{found['mass'] / found['backward']:>8.2f}", flush=True)


def modules():
    """Yields (description, module, True if it runs under autocast)."""
    from annulus.torch import LongNetAttention

    for subln in (False, True):
        module = LongNetAttention(WIDTH, HEADS, *zip(*peers.GIGAPATH), subln=subln).cuda()
        norm = ", norm" if subln else ""
        yield f"float16 weights{norm}", module.half(), False
        if subln:
            yield f"autocast{norm}", module.float(), True


def rows_of(tokens, autocast):
    """Returns an input as a model gives it. Under autocast it comes from a norm, which returns float32."""
    dtype = torch.float32 if autocast else torch.float16
    return torch.randn(1, tokens, WIDTH, dtype=dtype, device="cuda", requires_grad=True)


def parts_of(module, tokens, config):
    """Returns the parts of a module's forward, {name: work}. Each part has float16 rows that require gradients."""
    from annulus.torch import dilated_attention

    q, k, v = (x.requires_grad_() for x in inputs(tokens)[:3])
    rows = rows_of(tokens, autocast=False)
    projections = module.k_proj, module.v_proj, module.q_proj, module.out_proj
    parts = {
        "attention": lambda: dilated_attention(q, k, v, config),
        "projections": lambda: [projection(rows) for projection in projections],
    }
    if module.inner_attn_ln is not None:
        parts["norm"] = lambda: module.inner_attn_ln(rows.to(module.inner_attn_ln.weight.dtype))
    return parts


def module(config):
    names = ("module", "attention", "projections", "norm")
    print(f"\n{'module, forward':26}{'tokens':>8}" + "".join(f"{name:>13}" for name in names) + f"{'to parts':>10}")
    for tokens in TOKENS:
        for kind, made, autocast in modules():
            x = rows_of(tokens, autocast)
            with torch.no_grad(), torch.autocast("cuda", torch.float16, enabled=autocast):
                found = milliseconds({"module": lambda: made(x, x, x), **parts_of(made, tokens, config)})
            cells = (f"{found[name]:>10.3f} ms" if name in found else f"{'-':>13}" for name in names)
            ratio = found["module"] / (sum(found.values()) - found["module"])
            print(f"{kind:26}{tokens:>8}{''.join(cells)}{ratio:>10.3f}", flush=True)


def microseconds(work, calls=50, batches=60):
    """Returns how long a call holds the host, and how long one of many calls in a row takes. Both are the time that the
    fastest third of the batches does not exceed."""
    held, taken = [], []
    for _ in range(batches):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(calls):
            work()
        held.append(time.perf_counter() - start)
        torch.cuda.synchronize()
        taken.append(time.perf_counter() - start)
    return [1e6 * sorted(times)[batches // 3] / calls for times in (held, taken)]


def host(config):
    tokens = 1000
    names = ("module", "attention", "projections", "norm")
    title = f"module, {tokens} positions"
    print(f"\n{title:32}{'':9}" + "".join(f"{name:>13}" for name in names) + f"{'its own':>10}")
    for gradients in (False, True):
        for kind, made, autocast in modules():
            x = rows_of(tokens, autocast)
            with torch.set_grad_enabled(gradients), torch.autocast("cuda", torch.float16, enabled=autocast):
                works = {"module": lambda: made(x, x, x), **parts_of(made, tokens, config)}
                found = {name: microseconds(work) for name, work in works.items()}
            for index, what in enumerate(("host", "in a row")):
                times = {name: both[index] for name, both in found.items()}
                cells = (f"{times[name]:>10.1f} µs" if name in times else f"{'-':>13}" for name in names)
                own = times["module"] - (sum(times.values()) - times["module"])
                title = kind + (", training" if gradients else "")
                print(f"{title:32}{what:>9}{''.join(cells)}{own:>7.1f} µs", flush=True)


def memory(config):
    import annulus
    import published
    from annulus.torch import replace_longnet_attention
    from torch.utils.checkpoint import checkpoint

    segment_length, dilated_ratio = map(list, zip(*peers.GIGAPATH))
    model = published.Encoder(published.arguments(
        WIDTH, HEADS, encoder_ffn_embed_dim=4 * WIDTH, encoder_layers=12, segment_length=segment_length,
        dilated_ratio=dilated_ratio)).cuda()
    replace_longnet_attention(model)
    embed = torch.nn.Linear(2 * WIDTH, WIDTH).cuda()
    context = annulus.Context(config, "cuda")

    def work(tiles, training, checkpointed):
        """Runs the encoder. The loss is made of the class token's row."""
        features = torch.randn(1, tiles + 1, 2 * WIDTH, device="cuda")
        padding = torch.zeros(1, tiles + 1, dtype=torch.bool, device="cuda")
        with torch.set_grad_enabled(training), torch.autocast("cuda", torch.float16):
            x = embed(features).float()
            for layer in model.layers:
                x = checkpoint(layer, x, padding, use_reentrant=False) if checkpointed else layer(x, padding)
            loss = model.layer_norm(x)[:, 0].square().sum()
        if training:
            loss.backward()

    def peak(tiles, *kind):
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        work(tiles, *kind)
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated()

    def workspace(tiles, training, _):
        """Returns the bytes of the library's own workspace, which PyTorch does not count."""
        return max(context.workspace_size(tiles + 1, HEADS, DIM, pass_=pass_, dtype="float16")
                   for pass_ in ("forward", "backward")[:1 + training])

    print(f"\n{'memory of an encoder':26}{'bytes a tile':>13}{'workspace':>11}")
    for name, *kind in (("training", True, False), ("checkpointed", True, True), ("inference", False, False)):
        peak(5000, *kind)  # allocates what stays allocated, such as gradients of the parameters
        rates = [(size(20000, *kind) - size(10000, *kind)) / 10000 for size in (peak, workspace)]
        print(f"{name:26}{rates[0]:>13,.0f}{rates[1]:>11,.0f}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    tables = {table.__name__: table for table in (attention, mass, module, host, memory)}
    parser.add_argument("--only", action="append", choices=tables, help="may be given several times (default: all)")
    arguments = parser.parse_args()
    if torch is None or not torch.cuda.is_available():
        print("Skipped:", "no PyTorch here" if torch is None else "PyTorch finds no GPU here")
        return 77
    import annulus

    torch.manual_seed(0)
    random.seed(0)
    print(f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}, CUDA {torch.version.cuda}")
    for name in arguments.only or tables:
        tables[name](annulus.Config.gigapath())
        torch.cuda.empty_cache()
    return 0


if __name__ == "__main__":
    sys.exit(main())
