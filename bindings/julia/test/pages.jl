# SPDX-License-Identifier: Apache-2.0
# The Julia example of doc/slides.md, with 3000 tiles. All scores are equal and all values 1, so an output is the share of
# slots that have a key.
using Test

q, k = (zeros(Float32, 48, 16, 3001) for _ = 1:2)
v = ones(Float32, 48, 16, 3001)
page = read(joinpath(@__DIR__, "..", "..", "..", "doc", "slides.md"), String)
include_string(Main, match(r"^```julia\n(.*?)^```$"ms, page)[1])

@testset "doc/slides.md" begin
    @test size(out) == (48, 16, 3001) && size(lse) == (3001, 16)
    # The last position is in the first head's branches of dilation 1, 2, 4 and 8. The third segment of 1024 has 953 positions.
    others = 1501 + 751 + 376
    @test all(isapprox.(out[:, 1, end], (953 + others) / (1024 + others); rtol = 1e-5))
    @test lse[end, 1] ≈ log(1024 + others)
    @test all(isapprox.(out[:, 1, 1], 1; rtol = 1e-5))
end
