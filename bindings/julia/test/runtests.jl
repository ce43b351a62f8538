# SPDX-License-Identifier: Apache-2.0
# The tests that need only the library. Meson runs every file here by itself, with the C programs that layout.jl and
# same_as_c.jl compare with, and with the threads that threads.jl needs.
for file in ("errors.jl", "arrays.jl", "cached.jl", "memory.jl")
    Base.include(Module(Symbol(file)), joinpath(@__DIR__, file))
end
