# SPDX-License-Identifier: Apache-2.0
# CuArrays and views of them. Work is ordered on the stream of the task, as CUDA.jl orders its own work.
module AnnulusCUDAExt

using Annulus, CUDA

Annulus.place_of_memory(x::CuArray) = (:cuda, Int(CUDA.deviceid(CUDA.device(x))))

Annulus.stream_of_memory(x::CuArray) =
    CUDA.device!(() -> Ptr{Cvoid}(UInt(CUDA.stream().handle)), CUDA.device(x))

Annulus.address(::CuArray, x) = Ptr{Cvoid}(UInt(Base.unsafe_convert(CuPtr{eltype(x)}, x)))

end
