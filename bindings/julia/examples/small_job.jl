# SPDX-License-Identifier: Apache-2.0
# Attention over 64 tokens with two dilated branches, and its gradients. The examples of the other languages do the same job
# and print the same numbers.
#
# Float32 arrays q, k, v and d_out are filled one after the other, in the order of memory, from one generator:
# state = state * 1664525 + 1013904223 mod 2^32, beginning with state 1; the number is (state >> 8) / 2^23 - 1, exactly.
push!(LOAD_PATH, joinpath(@__DIR__, ".."))
using Annulus, Printf

const SIZE = (16, 4, 64) # D, H, N

function fill_next(state)
    numbers = Array{Float32}(undef, SIZE)
    for i in eachindex(numbers)
        state[] = state[] * 0x0019660d + 0x3c6ef35f
        numbers[i] = Float32(state[] >> 8) / 8388608 - 1
    end
    return numbers
end

total(a) = foldl((sum, x) -> sum + Float64(x), a; init = 0.0)
dot(a, b) = foldl((sum, x) -> sum + Float64(x[1]) * x[2], zip(a, b); init = 0.0)

state = Ref(UInt32(1))
q, k, v, d_out = (fill_next(state) for _ = 1:4)

context = Annulus.Context(Annulus.Config([(16, 1), (64, 4)]; causal = true))
out, lse = Annulus.forward(context, q, k, v)
d_q, d_k, d_v = Annulus.backward(context, q, k, v, out, lse, d_out)

@printf("sum(out) = %.6f\n", total(out))
@printf("sum(lse) = %.6f\n", total(lse))
@printf("out[0..3] = %.6f %.6f %.6f %.6f\n", out[1:4]...)
@printf("sum(q * dq) = %.6f\n", dot(q, d_q))
@printf("sum(k * dk) = %.6f\n", dot(k, d_k))
