# SPDX-License-Identifier: Apache-2.0
# CuArrays and views of them. Work is ordered on the task's stream, as CUDA.jl's own.
module AnnulusCUDAExt

using Annulus, CUDA

Annulus.place_of_memory(x::CuArray) = (:cuda, Int(CUDA.deviceid(CUDA.device(x))))

Annulus.stream_of_memory(x::CuArray) =
    CUDA.device!(() -> Ptr{Cvoid}(UInt(CUDA.stream().handle)), CUDA.device(x))

Annulus.address(::CuArray, x) = Ptr{Cvoid}(UInt(Base.unsafe_convert(CuPtr{eltype(x)}, x)))

end
