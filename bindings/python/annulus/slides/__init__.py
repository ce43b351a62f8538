# SPDX-License-Identifier: Apache-2.0
"""Maps of slides: which tiles a slide encoder looks at, as arrays and as a picture over the slide.

    from annulus.slides import read_tiles, slide_map

    tiles = read_tiles("slide.h5")                      # of CLAM, TRIDENT, STAMP, slide2vec or Prov-GigaPath's tiler
    slide_map(slide_encoder, tiles).save("map.png")     # a model of LongNet's published code
    attention_map(q, k, tiles, branches).save("map.png")    # queries and keys as arrays

slide_map() needs PyTorch, .h5 files need h5py, pictures need matplotlib and SciPy. The package's extra `slides` brings
the last three.
"""

from ._files import read_tiles
from ._map import SlideMap, attention_map, read_map, slide_map
from ._tiles import Tiles

__all__ = ["SlideMap", "Tiles", "attention_map", "read_map", "read_tiles", "slide_map"]
