// SPDX-License-Identifier: Apache-2.0
// A call of one pass, from checked arguments to the engine that computes it; with other ranks by agreement with them.
#pragma once

#include "call/call_memory.hpp"
#include "call/comm.hpp"
#include "call/context.hpp"
#include "core/error.hpp"
#include "core/sequences.hpp"
#include "engine/engine.hpp"

#include <annulus/attention.h>

#include <cstdint>
#include <new>
#include <optional>

namespace annulus {

// What the caller's arguments say, checked each for itself.
struct CheckedCall {
    CallProblem problem;
    CallTensors tensors;
    const annulus_tensor *mass = nullptr; // where that is what is asked for: [B, H, N]
};

class PassCall {
  public:
    // Throws where the context or its communicator cannot be used now.
    PassCall(annulus_context *context, annulus_pass pass);

    const annulus_context &context() const { return context_; }

    // Runs what check(), with the context's config there, says of the arguments. Everything is checked before anything
    // is written. Where other ranks take part they learn of it if this one cannot.
    template <class Check> void carry_out(const Check &check) {
        try {
            context_.required_config();
            run(check());
        } catch (const Error &error) {
            tell_others(error.what());
            throw;
        } catch (const std::bad_alloc &) {
            tell_others("out of memory");
            throw;
        }
    }

  private:
    struct RankPart;

    void run(const CheckedCall &call);
    CallSetting setting(const CheckedCall &call) const;
    // Calls pass(tensors, workspace) for the engine's passes that make up the call; returns how many these were. From
    // here on outputs may be written, and whatever fails has a status that says so.
    template <class Pass> std::int64_t run_passes(const CheckedCall &call, void *memory, const Pass &pass);
    template <class Pass> std::int64_t run_each_pass(const CheckedCall &call, void *memory, const Pass &pass);
    void run_alone(const CheckedCall &call);
    void run_with_others(const CheckedCall &call);
    // Together with the other ranks. A rank gets ready for the lengths that it knows and tells its own, in one question
    // to all. Where the others' turn out to be other ones, it gets ready for these, and there is a second question:
    // whether all are.
    void get_ready(std::optional<RankPart> &part, const CheckedCall &call);
    // Runs what tells the others of this rank.
    template <class Speech> auto speak(const Speech &speech);
    bool can_speak() const;
    void tell_others(const char *message) const;

    const ContextUse use_;
    annulus_context &context_;
    std::optional<CommUse> comm_; // none: no other ranks take part
    const annulus_pass pass_;
    bool has_spoken_ = false; // the others do not wait for a word of this rank
};

} // namespace annulus
