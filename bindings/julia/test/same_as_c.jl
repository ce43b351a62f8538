# SPDX-License-Identifier: Apache-2.0
# The C API and this package compute the same bits for the same problem. The environment variable ANNULUS_REFERENCE names
# the C program that computes it (tests/bindings/reference.c describes the problem).
using Annulus, Test

const D, H, G, N, B = 16, 4, 2, 65, 2
const QUERY, KEY, STATISTICS = (D, H, N, B), (D, G, N, B), (N, H, B)
const WINDOW_START = 41

# Any type of sixteen bits can stand for bfloat16, as that of BFloat16s does.
primitive type Brain16 16 end
Annulus.element_code(::Type{Brain16}) = Annulus.LibAnnulus.ANNULUS_BFLOAT16

bytes(x) = reinterpret(UInt8, vec(collect(x)))

function read_next(io, T, size)
    x = Array{T}(undef, size)
    GC.@preserve x unsafe_read(io, Ptr{UInt8}(pointer(x)), sizeof(x))
    return x
end

function compare(code, T)
    L = Annulus.lse_type(T)
    file = tempname()
    run(`$(ENV["ANNULUS_REFERENCE"]) $code $file`)
    io = IOBuffer(read(file))
    rm(file)
    q, k, v = read_next(io, T, QUERY), read_next(io, T, KEY), read_next(io, T, KEY)
    d_out, d_lse = read_next(io, T, QUERY), read_next(io, L, STATISTICS)

    branches = [
        (16, 1),
        Annulus.Branch(64, 4; phase = :interleave, heads = 2:4),
        Annulus.Branch(0, 3; query = :residue),
        Annulus.window(5, 2; dilation = 3, heads = 2:typemax(Int32)),
        Annulus.global_tokens(8:9; queries = true),
    ]
    options = (causal = true, scale = 0.3)
    out, lse = attention(q, k, v; branches = branches, return_lse = true, options...)
    context = Annulus.Context(Annulus.Config(branches; options...))
    d_q, d_k, d_v = Annulus.backward(context, q, k, v, out, lse, d_out; d_lse = d_lse)
    rows = view(q, :, :, WINDOW_START:N, :)
    window_out = attention(rows, k, v; branches = branches, query_start = WINDOW_START, options...)

    mass = Annulus.attention_mass(context, q, k, lse)

    @test bytes(out) == bytes(read_next(io, T, QUERY))
    @test bytes(lse) == bytes(read_next(io, L, STATISTICS))
    @test bytes(d_q) == bytes(read_next(io, T, QUERY))
    @test bytes(d_k) == bytes(read_next(io, T, KEY))
    @test bytes(d_v) == bytes(read_next(io, T, KEY))
    @test bytes(window_out) == bytes(read_next(io, T, (D, H, N - WINDOW_START + 1, B)))
    @test bytes(mass) == bytes(read_next(io, L, STATISTICS))
    @test eof(io)
    @test any(!iszero, bytes(d_q))
end

@testset "same as C: $T" for (code, T) in enumerate((Float64, Float32, Brain16, Float16))
    compare(code, T)
end
