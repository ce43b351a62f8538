# SPDX-License-Identifier: Apache-2.0
"""A model of slides with the structure of Prov-GigaPath's: an embedding of tiles, a table of positions, a class token, an
encoder of published.py that returns a dict, and a norm."""

import torch

import published


class Encoder(published.Encoder):
    """The arguments and results of torchscale's Encoder. Three attributes make it an encoder that cannot be packed."""

    adds_rows = pools = False

    def forward(self, src_tokens, token_embeddings=None, return_all_hiddens=False, **extra):
        x = token_embeddings
        if self.adds_rows:
            x = torch.cat((x[:, :1], x), 1)
        padding = torch.zeros(x.shape[:2], dtype=torch.bool, device=x.device)
        states = [x]
        for layer in self.layers:
            x = layer(x, padding)
            states.append(x)
        x = self.layer_norm(x)
        if self.pools:
            return x.mean(1)
        return {
            "encoder_out": x,
            "encoder_padding_mask": padding,
            "encoder_states": states if return_all_hiddens else [],
            "l_aux": [None] * len(self.layers),
        }


class SlideModel(torch.nn.Module):
    """Computes model(tiles [B, N, 24], coordinates [B, N, 2]) -> [[B, E], ...], of the class token or the mean."""

    grid, runs = 32, 1

    def __init__(self, args):
        super().__init__()
        width = args.encoder_embed_dim
        self.patch_embed = torch.nn.Linear(24, width)
        self.cls_token = torch.nn.Parameter(torch.randn(1, 1, width))
        self.register_buffer("pos_embed", torch.randn(1, self.grid**2 + 1, width))
        self.encoder = Encoder(args)
        self.norm = torch.nn.LayerNorm(width)
        self.extra = lambda x: {}

    def forward(self, tiles, coordinates, all_layer_embed=False, pool=False):
        x = self.patch_embed(tiles)
        places = torch.floor(coordinates / 256).long()
        x = x + self.pos_embed[0, 1 + places[..., 0] * self.grid + places[..., 1]]
        first = (self.cls_token + self.pos_embed[:, :1]).expand(len(x), -1, -1)
        x = torch.cat((first, x), 1)
        found = {"encoder_out": x}
        for _ in range(self.runs):
            found = self.encoder(None, token_embeddings=x, return_all_hiddens=all_layer_embed, **self.extra(x))
        states = found["encoder_states"] if all_layer_embed else [found["encoder_out"]]
        return [self.norm(state[:, 1:].mean(1) if pool else state[:, 0]) for state in states]
