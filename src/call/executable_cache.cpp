// SPDX-License-Identifier: Apache-2.0
#include "call/executable_cache.hpp"

#include "call/backends.hpp"
#include "call/call_memory.hpp"
#include "call/mass_executable.hpp"
#include "core/error.hpp"
#include "engine/sequence_executables.hpp"

#include <algorithm>
#include <span>

namespace annulus {

namespace {

// prepare_engine_pass(pass, limits) prepares forward or backward.
template <class PreparePass>
Preparation prepare_mass(const Problem &rows, const ExecutionSetting &setting, const PreparePass &prepare_engine_pass) {
    Preparation backward =
        prepare_engine_pass(ANNULUS_PASS_BACKWARD, setting.limits.without(MassExecutable::gradient_bytes(rows)));
    if (backward.refusal)
        return backward;
    return {std::make_unique<MassExecutable>(setting.backend, rows, setting.limits, std::move(backward.executable))};
}

} // namespace

Preparation prepare_pass(const SequencePlans &plans, annulus_pass pass, const Engine &engine,
                         const ExecutionSetting &setting) {
    const auto prepare_engine_pass = [&](annulus_pass engine_pass, const Limits &limits) {
        return prepare_over_sequences(engine, plans, engine_pass, setting.device, limits);
    };
    return pass == ANNULUS_PASS_MASS ? prepare_mass(plans.rows(), setting, prepare_engine_pass)
                                     : prepare_engine_pass(pass, setting.limits);
}

Preparation prepare_pass(const RankPlan &plans, annulus_pass pass, const Engine &engine,
                         const ExecutionSetting &setting) {
    const auto prepare_engine_pass = [&](annulus_pass engine_pass, const Limits &limits) {
        return prepare_distributed(plans, engine_pass, engine, setting.device, limits, setting.links);
    };
    return pass == ANNULUS_PASS_MASS ? prepare_mass(plans.rows(), setting, prepare_engine_pass)
                                     : prepare_engine_pass(pass, setting.limits);
}

const Preparation &Executables::prepared(annulus_pass pass, std::size_t engine, const ExecutionSetting &setting) {
    Preparation &entry = prepared_[pass - ANNULUS_PASS_FORWARD][engine];
    if (!entry.executable && !entry.refusal) {
        entry = prepare_(pass, *setting.backend.engines[engine], setting);
        ++count_;
    }
    return entry;
}

template <class Refuse>
Selection Executables::find(annulus_pass pass, const ExecutionSetting &setting, const Refuse &refuse) {
    const std::span<const Engine *const> engines = setting.backend.engines;
    const bool any = setting.engine == ANNULUS_ENGINE_AUTO;
    if (!any)
        check_has_engine(setting.backend, setting.engine);
    const char *last_reason = "this build has none for it"; // of the last engine, which supports most
    std::size_t too_large = engines.size();                 // the last engine that needs more than the limit, on a GPU
    for (std::size_t i = 0; i < engines.size(); ++i) {
        const Engine &engine = *engines[i];
        if (!any && engine.id != setting.engine)
            continue;
        const auto &[executable, refusal] = prepared(pass, i, setting);
        if (const char *const reason = refusal ? refusal : refuse(*executable)) {
            if (!any)
                throw Error(ANNULUS_ERROR_UNSUPPORTED, "engine %s cannot do this: %s", engine_name(engine.id), reason);
            last_reason = reason;
            continue;
        }
        const std::uint64_t limit = setting.limits.workspace_limit;
        if (!any || setting.backend.device == ANNULUS_DEVICE_CPU || limit == 0 ||
            executable->workspace_bytes() <= limit)
            return {*executable, engine};
        too_large = i;
    }
    if (too_large < engines.size())
        return {*prepared(pass, too_large, setting).executable, *engines[too_large]};
    throw Error(ANNULUS_ERROR_UNSUPPORTED, "no engine can do this on %s: %s", device_name(setting.backend.device),
                last_reason);
}

template <class Refuse>
Selection Executables::select_within_limit(annulus_pass pass, const ExecutionSetting &setting, const Refuse &refuse) {
    const Selection selection = find(pass, setting, refuse);
    const std::size_t announced = CallMemory::announced(selection.executable.workspace_bytes());
    if (setting.announced_limit != 0 && announced > setting.announced_limit)
        throw Error(ANNULUS_ERROR_WORKSPACE,
                    "engine %s needs %zu bytes of workspace for this; the config's workspace limit is %llu",
                    engine_name(selection.engine.id), announced,
                    static_cast<unsigned long long>(setting.announced_limit))
            .needing(announced);
    return selection;
}

Selection Executables::select(annulus_pass pass, const CallTensors *tensors, const ExecutionSetting &setting) {
    return select_within_limit(pass, setting, [&](const Executable &executable) {
        return tensors ? executable.tensor_refusal(*tensors) : nullptr;
    });
}

const Engine &Executables::select_engine(annulus_pass pass, std::int64_t row_alignment,
                                         const ExecutionSetting &setting) {
    const auto refuse = [&](const Executable &executable) {
        return executable.row_alignment() > row_alignment
                   ? "row_alignment of problem is too small for it; 16 is enough for every engine"
                   : nullptr;
    };
    return select_within_limit(pass, setting, refuse).engine;
}

std::size_t Executables::most_workspace(annulus_pass pass, std::int64_t row_alignment,
                                        const ExecutionSetting &setting) {
    const Selection selection = select(pass, nullptr, setting);
    std::size_t most = selection.executable.workspace_bytes();
    if (setting.engine != ANNULUS_ENGINE_AUTO)
        return most;
    // Tensors that one engine does not take go to the next engine that does.
    const std::span<const Engine *const> engines = setting.backend.engines;
    std::int64_t taken = selection.executable.row_alignment();
    auto next = std::ranges::find(engines, &selection.engine) - engines.begin() + 1;
    for (auto i = static_cast<std::size_t>(next); taken > row_alignment && taken > 1 && i < engines.size(); ++i) {
        const auto &[executable, refusal] = prepared(pass, i, setting);
        if (refusal)
            continue;
        const std::uint64_t limit = setting.limits.workspace_limit;
        if (limit != 0 && executable->workspace_bytes() > limit)
            continue; // a call that came to this engine would fail
        most = std::max(most, executable->workspace_bytes());
        taken = executable->row_alignment();
    }
    return most;
}

} // namespace annulus
