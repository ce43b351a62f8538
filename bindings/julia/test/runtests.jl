# SPDX-License-Identifier: Apache-2.0
# What needs nothing but the library. The C programs that layout.jl and same_as_c.jl compare with are built by Meson, which
# runs every file here.
using Test

for file in ("errors", "arrays", "memory")
    @testset "$file" begin
        include("$file.jl")
    end
end
