// SPDX-License-Identifier: Apache-2.0
// The plugin's table (engine/cuda_plugin.hpp), and its exported functions.
#include "engine/cuda_plugin.hpp"

#include "core/version.hpp"
#include "cuda/device/cublas_library.hpp"
#include "cuda/device/cuda_device.hpp"
#include "cuda/fused/engine.hpp"
#include "cuda/gemm/engine.hpp"
#include "cuda/results/device_functions.hpp"
#ifdef ANNULUS_HAVE_NCCL
#include "cuda/nccl/nccl_transport.hpp"
#include "transport/nccl_transports.hpp"
#endif

#include <iterator>

namespace annulus {

namespace {

const Engine *const engines[] = {
#ifdef ANNULUS_HAVE_SM90
    &fused_engine,
#endif
#ifdef ANNULUS_HAVE_MMA
    &mma_engine,
#endif
    &gemm_engine,
};
static_assert(std::size(engines) <= most_engines_of_device);

#ifdef ANNULUS_HAVE_NCCL
const NcclTransports nccl_transports{make_nccl_id, make_nccl_transports, make_nccl_transport, borrow_nccl_transport};
constexpr const NcclTransports *nccl = &nccl_transports;
#else
constexpr const NcclTransports *nccl = nullptr;
#endif

const CudaPlugin plugin{
    version_text,
    {
        ANNULUS_DEVICE_CUDA,
        engines,
        cuda_device_count,
        make_cuda_device,
        [](const MergeWork &work, int, void *stream) { merge_on_cuda(work, stream); },
        [](const MassWork &work, int, void *stream) { mark_heads_on_cuda(work, stream); },
        [](const MassWork &work, int, void *stream) { take_mass_on_cuda(work, stream); },
        make_cuda_message_copier,
    },
    cuda_versions,
    nccl,
};

} // namespace

} // namespace annulus

extern "C" __attribute__((visibility("default"))) const annulus::CudaPlugin *annulus_cuda_plugin() {
    return &annulus::plugin;
}

// Returns what dlopen() returned for cuBLAS, or null if there is none. `annulus bench` measures a product of its own.
extern "C" __attribute__((visibility("default"))) void *annulus_cublas_of_plugin() {
    try {
        return annulus::cublas().handle;
    } catch (const annulus::Error &) {
        return nullptr;
    }
}
