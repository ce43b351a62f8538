# SPDX-License-Identifier: Apache-2.0
"""
Exact dilated attention over sequences of any length, forward and backward, by the C library libannulus.

    using Annulus
    q, k, v = (randn(Float32, 64, 8, 10_000) for _ = 1:3)      # D, H, N
    out = attention(q, k, v; branches = [(2048, 1), (8192, 4)], causal = true)

    context = Annulus.Context(Annulus.Config([(2048, 1), (8192, 4)]; causal = true))
    out, lse = Annulus.forward(context, q, k, v)
    d_q, d_k, d_v = Annulus.backward(context, q, k, v, out, lse, d_out)

Arrays are of size (D, H, N, B), which in memory is C's [B, N, H, D]: nothing is copied. Elements are Float64, Float32 or
Float16. With Julia 1.9 or newer they may also be BFloat16 if BFloat16s is loaded, and arrays may be CuArrays if CUDA is loaded.

The library is the file that the environment variable ANNULUS_LIBRARY names, or else the library that the system's loader finds.
"""
module Annulus

include("library.jl")
include("errors.jl")
include("config.jl")
include("arrays.jl")
include("comm.jl")
include("context.jl")

export attention, AnnulusError

end
