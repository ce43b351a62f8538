// SPDX-License-Identifier: Apache-2.0
// Options that several commands share.
#pragma once

#include "handles.hpp"

#include <CLI/CLI.hpp>

#include <concepts>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

namespace annulus::cli {

// Which keys a query attends to.
struct PatternOptions {
    std::vector<std::string> presets;
    std::vector<std::string> branches;
    bool head_groups = false;
    bool causal = false;
    std::string padding;
    std::optional<double> scale;

    void add_to(CLI::App &command);
    bool empty() const { return presets.empty() && branches.empty(); }
    // The pattern for problems of `heads` query heads.
    Config config(std::int32_t heads) const;
    // What the user would call each branch of the config.
    std::vector<std::string> labels() const;
};

// How it is computed.
struct ExecutionOptions {
    DeviceChoice device;
    std::string engine;
    std::string exchange;
    std::int32_t threads = 0;
    bool deterministic = false;
    bool allow_tf32 = false;
    std::uint64_t workspace_limit = 0; // bytes; 0: the engine's own choice

    void add_to(CLI::App &command);
    // The threads that computing takes: those asked for, or as many as the process may run on.
    int thread_count() const;
};

// The sizes of a problem without data.
struct ProblemOptions {
    std::int64_t tokens = 0;
    std::int32_t heads = 0;
    std::int32_t kv_heads = 0; // 0: as many as heads
    std::int32_t head_dim = 0;
    std::int64_t batch = 1;
    std::string dtype; // empty: float32

    void add_to(CLI::App &command, bool required);
    // All tokens, as queries and as keys.
    annulus_problem problem() const;
};

Context make_context(const PatternOptions &pattern, const ExecutionOptions &execution, std::int32_t heads);

// What the user calls an exchange.
std::string exchange_name(annulus_exchange exchange);

// What is wrong with `text`, the value of an option, is thrown as Failure.
std::int64_t whole_number(const std::string &option, const std::string &text, std::int64_t lowest,
                          std::int64_t highest);
double real_number(const std::string &option, const std::string &text);

// An option that is a number in the range of its type, which `value` can be assigned.
template <class Number, class Value>
CLI::Option *add_number(CLI::App &command, const std::string &name, Value &value, const std::string &help) {
    const auto set = [&value, name](const std::string &text) {
        if constexpr (std::integral<Number>)
            value = static_cast<Number>(
                whole_number(name, text, std::numeric_limits<Number>::min(), std::numeric_limits<Number>::max()));
        else
            value = real_number(name, text);
    };
    return command.add_option_function<std::string>(name, set, help);
}

CLI::Option *add_dtype_option(CLI::App &command, std::string &dtype, const std::string &help);
annulus_dtype dtype_of(const std::string &name);

} // namespace annulus::cli
