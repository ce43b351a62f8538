// SPDX-License-Identifier: Apache-2.0
#include "call/prepared_calls.hpp"

#include "call/call_memory.hpp"
#include "core/error.hpp"

#include <algorithm>

namespace annulus {

template <class CallPlan, class Call>
Call &PlannedCalls<CallPlan, Call>::call(annulus_pass pass, std::size_t engine, const CallSetting &setting) {
    std::unique_ptr<Call> &call = calls_[pass == ANNULUS_PASS_BACKWARD][engine];
    if (!call) {
        call = std::make_unique<Call>(plan_, pass, *engines_of(setting.kind)[engine], setting.device, setting.limits);
        ++prepared_;
    }
    return *call;
}

template <class CallPlan, class Call>
template <class Refuse>
ChosenCall<Call> PlannedCalls<CallPlan, Call>::find(annulus_pass pass, const CallSetting &setting,
                                                    const Refuse &refuse) {
    const std::span<const Engine *const> engines = engines_of(setting.kind);
    const bool any = setting.engine == ANNULUS_ENGINE_AUTO;
    if (!any)
        find_engine(setting.kind, setting.engine);
    const char *last_reason = "this build has none for it"; // of the engine that can do most
    std::size_t too_large = engines.size();                 // the last on a GPU that needs more than the limit
    for (std::size_t i = 0; i < engines.size(); ++i) {
        const Engine &engine = *engines[i];
        if (!any && engine.id != setting.engine)
            continue;
        Call &able = call(pass, i, setting);
        const char *const refusal = able.refusal();
        if (const char *const reason = refusal ? refusal : refuse(able)) {
            if (!any)
                throw Error(ANNULUS_ERROR_UNSUPPORTED, "engine %s cannot do this: %s", engine_name(engine.id), reason);
            last_reason = reason;
            continue;
        }
        const std::uint64_t limit = setting.limits.workspace_limit;
        if (!any || setting.kind == ANNULUS_DEVICE_CPU || limit == 0 || able.workspace_bytes() <= limit)
            return {able, engine};
        too_large = i;
    }
    if (too_large < engines.size())
        return {call(pass, too_large, setting), *engines[too_large]};
    throw Error(ANNULUS_ERROR_UNSUPPORTED, "no engine can do this on %s: %s", device_name(setting.kind), last_reason);
}

template <class CallPlan, class Call>
template <class Refuse>
ChosenCall<Call> PlannedCalls<CallPlan, Call>::choose_within_limit(annulus_pass pass, const CallSetting &setting,
                                                                   const Refuse &refuse) {
    const ChosenCall<Call> chosen = find(pass, setting, refuse);
    const std::size_t announced = CallMemory::announced(setting.own_bytes + chosen.call.workspace_bytes());
    if (setting.announced_limit != 0 && announced > setting.announced_limit)
        throw Error(ANNULUS_ERROR_WORKSPACE,
                    "engine %s needs %zu bytes of workspace for this; the config's workspace limit is %llu",
                    engine_name(chosen.engine.id), announced, static_cast<unsigned long long>(setting.announced_limit))
            .needing(announced);
    return chosen;
}

template <class CallPlan, class Call>
ChosenCall<Call> PlannedCalls<CallPlan, Call>::choose(annulus_pass pass, const CallTensors *tensors,
                                                      const CallSetting &setting) {
    return choose_within_limit(pass, setting,
                               [&](const Call &able) { return tensors ? able.tensor_refusal(*tensors) : nullptr; });
}

template <class CallPlan, class Call>
const Engine &PlannedCalls<CallPlan, Call>::select_engine(annulus_pass pass, std::int64_t row_alignment,
                                                          const CallSetting &setting) {
    return choose_within_limit(
               pass, setting,
               [&](const Call &able) {
                   return able.row_alignment() > row_alignment
                              ? "row_alignment of problem is too small for it; 16 is enough for every engine"
                              : nullptr;
               })
        .engine;
}

template <class CallPlan, class Call>
std::size_t PlannedCalls<CallPlan, Call>::most_workspace(annulus_pass pass, std::int64_t row_alignment,
                                                         const CallSetting &setting) {
    const ChosenCall<Call> chosen = choose(pass, nullptr, setting);
    std::size_t most = chosen.call.workspace_bytes();
    if (setting.engine != ANNULUS_ENGINE_AUTO)
        return most;
    // Tensors that one engine does not take go to the next that does.
    const std::span<const Engine *const> engines = engines_of(setting.kind);
    std::int64_t taken = chosen.call.row_alignment();
    auto next = std::ranges::find(engines, &chosen.engine) - engines.begin() + 1;
    for (auto i = static_cast<std::size_t>(next); taken > row_alignment && taken > 1 && i < engines.size(); ++i) {
        const Call &other = call(pass, i, setting);
        if (other.refusal())
            continue;
        const std::uint64_t limit = setting.limits.workspace_limit;
        if (limit != 0 && other.workspace_bytes() > limit)
            continue; // such a call fails
        most = std::max(most, other.workspace_bytes());
        taken = other.row_alignment();
    }
    return most;
}

template class PlannedCalls<SequencePlans, WholeCall>;
template class PlannedCalls<RankPlans, RankSequences>;

} // namespace annulus
