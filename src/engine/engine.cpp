// SPDX-License-Identifier: Apache-2.0
// The engines in the order in which `auto` tries them.
#include "engine/engine.hpp"

#include "core/error.hpp"

namespace annulus {

namespace {

// Fastest first; the reference serves `auto` only where nothing else can.
const Engine *const engines[] = {
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
    throw Error(ANNULUS_ERROR_UNSUPPORTED, "engine %s does not run on %s", engine_name(id), device_name(device));
}

} // namespace

const Engine &choose_engine(annulus_device device, annulus_engine wanted, const Plan &plan, annulus_pass pass,
                            const Resources &resources) {
    if (wanted != ANNULUS_ENGINE_AUTO) {
        const Engine &engine = find_engine(device, wanted);
        if (const char *reason = engine.refusal(plan, pass, resources))
            throw Error(ANNULUS_ERROR_UNSUPPORTED, "engine %s cannot do this: %s", engine_name(wanted), reason);
        return engine;
    }
    const char *first_reason = nullptr;
    for (const Engine *engine : engines) {
        if (engine->device != device)
            continue;
        const char *reason = engine->refusal(plan, pass, resources);
        if (!reason)
            return *engine;
        if (!first_reason)
            first_reason = reason;
    }
    throw Error(ANNULUS_ERROR_UNSUPPORTED, "no engine can do this on %s: %s", device_name(device),
                first_reason ? first_reason : "this build has none for it");
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
    }
    return nullptr;
}

} // namespace annulus
