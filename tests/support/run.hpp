// SPDX-License-Identifier: Apache-2.0
// Runs forward and backward through the public API and watches all their memory. Before a call outputs and workspace
// are NaN. After it guards, gaps and inputs must be unchanged.
#pragma once

#include "support/memory.hpp"
#include "support/problem.hpp"

#include <cstdint>
#include <vector>

namespace annulus::test {

// Values in the order of the tensors' shapes. The dtype that they were made for can represent them.
struct Inputs {
    std::vector<double> q, k, v, d_out;
    std::vector<double> d_lse; // empty: not passed
    // The gradients before the call; empty: NaN.
    std::vector<double> d_q = {}, d_k = {}, d_v = {};
};

struct Results {
    std::vector<double> out, lse;
    std::vector<double> d_q, d_k, d_v; // empty when there was no backward call
    std::vector<double> mass = {};     // [B, H, N]; empty if it was not computed
};

// Returns normally distributed values.
Inputs random_inputs(const Problem &problem, std::uint64_t seed, bool with_d_lse = true);

// One problem's tensors in a memory, and the calls that compute with them.
class Call {
  public:
    // aligned: see Copies.
    Call(const Problem &problem, const Inputs &inputs, Memory &memory, bool aligned = false);

    // Writes new values into the inputs and NaN into the outputs.
    void reset(const Inputs &inputs);

    // forward() and backward() return as soon as the library does.
    annulus_status forward(annulus_context *context) const;
    annulus_status backward(annulus_context *context) const;
    // Requires forward().
    annulus_status mass(annulus_context *context) const;

    // Waits for the passes up to `last` and returns their results, and the mass together with those of forward. Throws
    // if a byte outside the elements of the outputs was written.
    Results results(annulus_pass last = ANNULUS_PASS_BACKWARD);

    // The arguments of the passes.
    struct Arguments {
        annulus_tensor q, k, v, out, lse, d_out, d_lse, d_q, d_k, d_v, mass;
    };
    Arguments arguments;
    annulus_call_options options; // options_of() returns those of a pass

    annulus_call_options options_of(annulus_pass pass) const;

  private:
    void assign(const Inputs &inputs);

    Problem problem_;
    Inputs inputs_;
    // If the layout says so, q, k and v are packed together, and so are their gradients.
    std::vector<Tensor> qkv_, gradients_, outs_, statistics_;
    Copies copies_;
};

struct RunOptions {
    annulus_engine engine = ANNULUS_ENGINE_CPU;
    // Returns why the engine refuses a problem, null if it accepts it. A null pointer: the engine accepts all problems.
    const char *(*refusal)(const Problem &problem) = nullptr;
    int threads = 2;
    bool backward = true;
    bool mass = false; // instead of backward
    Memory *memory = &host_memory();
    bool aligned = false;
    bool own_workspace = true; // exactly the bytes that the library asks for, watched; otherwise the context allocates
    std::uint64_t workspace_limit = 0;
    bool raise_limit = false; // doubles workspace_limit until the library accepts it; 64 MiB must be enough
    bool allow_tf32 = false;
    bool splits_float32 = false; // float32 factors are sums of two numbers of TF32 (annulus/attention.h)
    annulus_exchange exchange = ANNULUS_EXCHANGE_AUTO; // with several ranks

    // Returns the refusal of the first sequence that the engine refuses, for a problem of several sequences.
    const char *refusal_of(const Problem &problem) const;
};

// Returns the problem, or a similar one that the engine accepts. That one has fewer columns, the linear order, other
// rows, the default scale, or keys that count for each branch.
Problem taken(Problem problem, const RunOptions &options);

Config make_config(const Problem &problem, const RunOptions &options);

// Runs the passes on a context. `sizes` are the sizes of the tensors of `problem`, alone or as a part of a longer
// sequence.
Results run_on(annulus_context *context, const annulus_problem &sizes, const Problem &problem, const Inputs &inputs,
               const RunOptions &options);

// Runs the passes. Throws with the library's message if a call fails. Also throws if a byte outside the outputs'
// elements was written.
Results run(const Problem &problem, const Inputs &inputs, const RunOptions &options = {});

// The engine of run_exact(). The main() of GPU tests chooses `cpu`, which takes a tenth of the time. CPU tests compare
// `cpu` with the reference engine to 1e-12 on the same problems.
inline annulus_engine exact_engine = ANNULUS_ENGINE_REFERENCE;

// Returns the results of `engine` in float64 for the same values.
Results run_exact(const Problem &problem, const Inputs &inputs, bool backward = true,
                  annulus_engine engine = exact_engine);

} // namespace annulus::test
