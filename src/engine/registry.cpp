// SPDX-License-Identifier: Apache-2.0
// The engines in the order in which `auto` tries them.
#include "engine/engine.hpp"

#include "core/error.hpp"

namespace annulus {

namespace {

// Fastest first; the reference serves `auto` only where nothing else can.
const Engine *const engines[] = {
#ifdef ANNULUS_HAVE_FUSED
    &fused_engine,
#endif
#ifdef ANNULUS_HAVE_CUDA
    &gemm_engine,
#endif
    &cpu_engine,
    &reference_engine,
};

const Engine &find_engine(annulus_device device, annulus_engine id) {
    for (const Engine *engine : engines)
        if (engine->id == id && engine->device == device)
            return *engine;
    throw Error(ANNULUS_ERROR_UNSUPPORTED, "this build has no engine %s for %s", engine_name(id), device_name(device));
}

const char *refusal_of(const Engine &engine, const Plan &plan, annulus_pass pass, const CallTensors &tensors,
                       const Resources &resources) {
    const char *reason = engine.refusal(plan, pass, resources);
    return !reason && engine.tensor_refusal ? engine.tensor_refusal(tensors) : reason;
}

bool fits_into_limit(const Engine &engine, const Plan &plan, annulus_pass pass, const Resources &resources) {
    const std::uint64_t limit = resources.workspace_limit;
    return limit == 0 || engine.workspace_bytes(plan, pass, resources) <= limit;
}

} // namespace

const Engine &choose_engine(annulus_device device, annulus_engine wanted, const Plan &plan, annulus_pass pass,
                            const CallTensors &tensors, const Resources &resources) {
    if (wanted != ANNULUS_ENGINE_AUTO) {
        const Engine &engine = find_engine(device, wanted);
        if (const char *reason = refusal_of(engine, plan, pass, tensors, resources))
            throw Error(ANNULUS_ERROR_UNSUPPORTED, "engine %s cannot do this: %s", engine_name(wanted), reason);
        return engine;
    }
    const char *last_reason = nullptr; // of the engine that can do most
    const Engine *too_large = nullptr; // the last on a GPU that needs more workspace than the limit
    for (const Engine *engine : engines) {
        if (engine->device != device)
            continue;
        last_reason = refusal_of(*engine, plan, pass, tensors, resources);
        if (last_reason)
            continue;
        if (device == ANNULUS_DEVICE_CPU || fits_into_limit(*engine, plan, pass, resources))
            return *engine;
        too_large = engine;
    }
    if (too_large)
        return *too_large;
    throw Error(ANNULUS_ERROR_UNSUPPORTED, "no engine can do this on %s: %s", device_name(device),
                last_reason ? last_reason : "this build has none for it");
}

void check_engine_device(annulus_device device, annulus_engine engine) {
    if (engine != ANNULUS_ENGINE_AUTO)
        find_engine(device, engine);
}

const char *engine_name(annulus_engine engine) {
    switch (engine) {
    case ANNULUS_ENGINE_AUTO:
        return "auto";
    case ANNULUS_ENGINE_REFERENCE:
        return "reference";
    case ANNULUS_ENGINE_CPU:
        return "cpu";
    case ANNULUS_ENGINE_GEMM:
        return "gemm";
    case ANNULUS_ENGINE_FUSED:
        return "fused";
    }
    return nullptr;
}

} // namespace annulus
