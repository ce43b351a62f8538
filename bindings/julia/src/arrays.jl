# SPDX-License-Identifier: Apache-2.0
# Makes the C API's tensors of arrays. Extensions add methods here for element types and kinds of arrays.

"Returns the C API's number of an element type."
element_code(::Type{Float64}) = LibAnnulus.ANNULUS_FLOAT64
element_code(::Type{Float32}) = LibAnnulus.ANNULUS_FLOAT32
element_code(::Type{Float16}) = LibAnnulus.ANNULUS_FLOAT16
element_code(T::Type) = throw(
    argument_error(
        "elements are $T; they must be Float64, Float32, Float16, or BFloat16 where BFloat16s is loaded (Julia 1.9 or newer)",
    ),
)

"Returns the element type of LSE."
lse_type(::Type{Float64}) = Float64
lse_type(::Type) = Float32

"Returns the array whose memory a view shows."
memory_of(x::AbstractArray) = (p = parent(x); p === x ? x : memory_of(p))

"Returns the device that has an array's memory: (kind, number)."
place_of(x::AbstractArray) = place_of_memory(memory_of(x))
place_of_memory(::AbstractArray) = (:cpu, 0)

"Returns the stream on which work on an array's device is ordered."
stream_of(x::AbstractArray) = stream_of_memory(memory_of(x))
stream_of_memory(::AbstractArray) = C_NULL

"Returns the address of an array's first element; `memory` is the array whose memory it shows."
function address(memory::AbstractArray, x)
    p = pointer(x)
    p isa Ptr || throw(argument_error("arrays of type $(typeof(memory)) need an extension, and so Julia 1.9 or newer"))
    return Ptr{Cvoid}(p)
end

"""
Makes the C API's tensor of an array: the same memory, with the dimensions in the reverse order. The last dimension, B, may be
missing; then it is 1. The array must stay alive while the tensor is used.
"""
function tensor(name, x::AbstractArray, ndim)
    ndim - 1 <= ndims(x) <= ndim ||
        throw(argument_error("$name has $(ndims(x)) dimensions; it must have $ndim, or $(ndim - 1) where B is 1"))
    lengths, steps = size(x), strides(x)
    if ndims(x) < ndim
        steps = (steps..., steps[end] * lengths[end])
        lengths = (lengths..., 1)
    end
    padded(numbers) = ntuple(i -> i <= ndim ? Int64(numbers[ndim+1-i]) : Int64(0), 4)
    return LibAnnulus.annulus_tensor(address(memory_of(x), x), element_code(eltype(x)), ndim, padded(lengths), padded(steps))
end
