// SPDX-License-Identifier: Apache-2.0
// Forward and backward calls through the public API, with everything about them watched: outputs and workspace are NaN
// before, guards, gaps and inputs must be as they were after.
#pragma once

#include "support/memory.hpp"
#include "support/problem.hpp"

#include <cstdint>
#include <vector>

namespace annulus::test {

// Values in the order of the tensors' shapes; representable in the dtype they were made for.
struct Inputs {
    std::vector<double> q, k, v, d_out;
    std::vector<double> d_lse; // empty: none is passed
    // What the gradients are before the call; empty: NaN.
    std::vector<double> d_q = {}, d_k = {}, d_v = {};
};

struct Results {
    std::vector<double> out, lse;
    std::vector<double> d_q, d_k, d_v; // empty when there was no backward call
    std::vector<double> mass = {};     // [B, H, N]; empty when nobody asked for it
};

// Normally distributed values.
Inputs random_inputs(const Problem &problem, std::uint64_t seed, bool with_d_lse = true);

// One problem's tensors in a memory, and the calls on them.
class Call {
  public:
    // aligned: as Copies takes it.
    Call(const Problem &problem, const Inputs &inputs, Memory &memory, bool aligned = false);

    // New values in the inputs, NaN in the outputs.
    void reset(const Inputs &inputs);

    // Both return as soon as the library does.
    annulus_status forward(annulus_context *context) const;
    annulus_status backward(annulus_context *context) const;
    // After forward.
    annulus_status mass(annulus_context *context) const;

    // What the passes up to `last` wrote, once they are done with it; with the mass that of forward besides. Throws
    // when anything but the elements of their outputs was written.
    Results results(annulus_pass last = ANNULUS_PASS_BACKWARD);

    // What the passes are called with.
    struct Arguments {
        annulus_tensor q, k, v, out, lse, d_out, d_lse, d_q, d_k, d_v, mass;
    };
    Arguments arguments;
    annulus_call_options options; // those of a pass are told by options_of()

    annulus_call_options options_of(annulus_pass pass) const;

  private:
    void assign(const Inputs &inputs);

    Problem problem_;
    Inputs inputs_;
    // q | k | v and their gradients are each packed together where the layout says so.
    std::vector<Tensor> qkv_, gradients_, outs_, statistics_;
    Copies copies_;
};

struct RunOptions {
    annulus_engine engine = ANNULUS_ENGINE_CPU;
    // Why the engine does not take a problem, null where it does. Null: it takes all.
    const char *(*refusal)(const Problem &problem) = nullptr;
    int threads = 2;
    bool backward = true;
    bool mass = false; // in place of backward
    Memory *memory = &host_memory();
    bool aligned = false;
    bool own_workspace = true; // exactly what the library asks for, watched; else the context allocates
    std::uint64_t workspace_limit = 0;
    bool raise_limit = false; // doubles workspace_limit until the library accepts it; 64 MiB must do
    bool allow_tf32 = false;
    bool splits_float32 = false; // float32 factors are sums of two numbers of TF32 (annulus/attention.h)
    annulus_exchange exchange = ANNULUS_EXCHANGE_AUTO; // with several ranks

    // Of a problem of several sequences, what it says of the first that it does not take.
    const char *refusal_of(const Problem &problem) const;
};

// The problem, or one like it that the engine takes: with fewer columns, the linear order, other rows, the default
// scale or keys that count for each branch.
Problem taken(Problem problem, const RunOptions &options);

Config make_config(const Problem &problem, const RunOptions &options);

// The passes on a context. `sizes` are those of `problem`, the tensors' own, or as a part of a longer sequence.
Results run_on(annulus_context *context, const annulus_problem &sizes, const Problem &problem, const Inputs &inputs,
               const RunOptions &options);

// Throws with the library's message when a call fails, and when anything but the outputs' elements was written.
Results run(const Problem &problem, const Inputs &inputs, const RunOptions &options = {});

// The engine of run_exact(). main() of the programs that test engines on GPUs chooses `cpu`, which takes a tenth of the
// time: tests on the CPU hold it against the reference engine to 1e-12, on the same problems.
inline annulus_engine exact_engine = ANNULUS_ENGINE_REFERENCE;

// The results of `engine` in float64 for the same values.
Results run_exact(const Problem &problem, const Inputs &inputs, bool backward = true,
                  annulus_engine engine = exact_engine);

} // namespace annulus::test
