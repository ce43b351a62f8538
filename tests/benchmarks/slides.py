# SPDX-License-Identifier: Apache-2.0
"""Measures time and memory of a slide encoder on one GPU: Prov-GigaPath's branches, 16 heads of 48, float16.

  attention  of given q, k and v, against LongNet's published procedure over PyTorch's FlashAttention-2 (longnet-flash
             of peers.py); forward, and forward with backward
  mass       of all keys, from the LSE of forward, against backward
  module     LongNetAttention's forward, against each of its parts alone
  host       how long a module's call of 1,000 positions holds the host, and how long it takes, against its parts
  memory     bytes for each tile in an encoder of 12 layers, of the published structure: PyTorch's peak, and workspace
  encoder    that encoder under autocast, against the same without attention (its projections stay); forward, and
             forward with backward. With --checkout it is Prov-GigaPath's own encoder, with its dropout
  packed     encode_slides() of 32 slides of 200 to 20,000 tiles, against one slide as long; an encoder of 3 layers

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


def slide_encoder(layers=12):
    """Makes a model of tiles [1, N, 2 * WIDTH] to a row [1, WIDTH]: a class token and layers of published structure."""
    import published
    from annulus.torch import replace_longnet_attention

    class SlideEncoder(torch.nn.Module):
        def __init__(self):
            super().__init__()
            segment_length, dilated_ratio = map(list, zip(*peers.GIGAPATH))
            self.embed = torch.nn.Linear(2 * WIDTH, WIDTH)
            self.class_token = torch.nn.Parameter(torch.randn(1, 1, WIDTH))
            self.encoder = published.Encoder(published.arguments(
                WIDTH, HEADS, encoder_ffn_embed_dim=4 * WIDTH, encoder_layers=layers, segment_length=segment_length,
                dilated_ratio=dilated_ratio))

        def forward(self, tiles):
            return self.encoder(torch.cat((self.class_token, self.embed(tiles).float()), 1))[:, 0]

    model = SlideEncoder().cuda()
    replace_longnet_attention(model)
    return model.train()  # no part has dropout


def gigapath_encoder(checkout):
    """Makes Prov-GigaPath's encoder by its own code, with random weights, for tiles [1, N, 2 * WIDTH] on a grid."""
    sys.path.insert(0, str(checkout))
    from annulus.torch import replace_longnet_attention
    from gigapath import slide_encoder as published_code

    model = published_code.create_model("", "gigapath_slide_enc12l768d", in_chans=2 * WIDTH).cuda()
    replace_longnet_attention(model)

    def encode(tiles):
        numbers = torch.arange(tiles.shape[1], device="cuda")
        return model(tiles, 256 * torch.stack((numbers // 300, numbers % 300), 1)[None])[0]

    return model.train(), encode


def memory(config):
    import annulus
    from torch.utils.checkpoint import checkpoint

    model = slide_encoder()
    context = annulus.Context(config, "cuda")

    def work(tiles, training, checkpointed):
        """Runs the encoder. The loss is made of the class token's row."""
        features = torch.randn(1, tiles, 2 * WIDTH, device="cuda")
        padding = torch.zeros(1, tiles + 1, dtype=torch.bool, device="cuda")
        with torch.set_grad_enabled(training), torch.autocast("cuda", torch.float16):
            x = torch.cat((model.class_token, model.embed(features).float()), 1)
            for layer in model.encoder.layers:
                x = checkpoint(layer, x, padding, use_reentrant=False) if checkpointed else layer(x, padding)
            loss = model.encoder.layer_norm(x)[:, 0].square().sum()
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


def passes_of(name, model, encode):
    """Returns the two works of encode(), {name: work}: forward without gradients, and forward with backward."""
    def forward():
        with torch.no_grad(), torch.autocast("cuda", torch.float16):
            encode()

    def both():
        with torch.autocast("cuda", torch.float16):
            rows = encode()
        torch.autograd.grad(sum(row.square().sum() for row in rows), list(model.parameters()))

    return {(name, "forward"): forward, (name, "forward and backward"): both}


def encoder(config, checkout):
    from annulus.torch import _modules

    class Through(torch.autograd.Function):
        """Returns q. Its backward gives q, k and v the gradient of the output."""

        @staticmethod
        def forward(ctx, q, k, v):
            return q.view_as(q)

        @staticmethod
        def backward(ctx, d_out):
            return d_out, d_out, d_out

    attend = _modules.attend
    if checkout is None:
        model = encode = slide_encoder()
    else:
        model, encode = gigapath_encoder(checkout)

    def without_attention(work):
        def run():
            _modules.attend = lambda q, k, v, *_, **__: (Through.apply(q, k, v), None)
            work()
            _modules.attend = attend

        return run

    print(f"\n{'encoder of 12 layers':26}{'tokens':>8}{'whole':>12}{'no attention':>15}{'ratio':>8}")
    for tokens in TOKENS:
        tiles = torch.randn(1, tokens - 1, 2 * WIDTH, device="cuda")
        whole = passes_of("whole", model, lambda: [encode(tiles)])
        found = milliseconds(
            whole | {("without", name): without_attention(work) for (_, name), work in whole.items()})
        for _, name in whole:
            times = found["whole", name], found["without", name]
            print(f"{name:26}{tokens:>8}{times[0]:>9.2f} ms{times[1]:>12.2f} ms{times[0] / times[1]:>8.2f}", flush=True)


def packed(config):
    from annulus.torch import encode_slides

    model = slide_encoder(layers=3)  # 12 layers of 323,200 tiles need more memory than a GPU has for backward
    lengths = [200 + (20000 - 200) * i // 31 for i in range(32)]
    slides = [torch.randn(1, length, 2 * WIDTH, device="cuda") for length in lengths]
    one = torch.cat(slides, 1)
    found = milliseconds(passes_of("packed", model, lambda: encode_slides(model, slides))
                         | passes_of("one", model, lambda: [model(one)]))
    title = f"{sum(lengths)} tiles"
    print(f"\n{title:26}{'32 slides':>15}{'one slide':>15}{'ratio':>8}")
    for name in ("forward", "forward and backward"):
        times = found["packed", name], found["one", name]
        print(f"{name:26}{times[0]:>12.2f} ms{times[1]:>12.2f} ms{times[0] / times[1]:>8.2f}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    tables = {table.__name__: table for table in (attention, mass, module, host, memory, encoder, packed)}
    parser.add_argument("--only", action="append", choices=tables, help="may be given several times (default: all)")
    parser.add_argument("--checkout", type=pathlib.Path, help="a checkout of prov-gigapath/prov-gigapath, for encoder")
    arguments = parser.parse_args()
    if torch is None or not torch.cuda.is_available():
        print("Skipped:", "no PyTorch here" if torch is None else "PyTorch finds no GPU here")
        return 77
    import annulus

    torch.manual_seed(0)
    random.seed(0)
    print(f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}, CUDA {torch.version.cuda}")
    for name in arguments.only or tables:
        tables[name](annulus.Config.gigapath(), *([arguments.checkout] if name == "encoder" else []))
        torch.cuda.empty_cache()
    return 0


if __name__ == "__main__":
    sys.exit(main())
