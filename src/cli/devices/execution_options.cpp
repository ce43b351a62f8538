// SPDX-License-Identifier: Apache-2.0
#include "cli/devices/execution_options.hpp"

#include "cli/report/number_option.hpp"
#include "cli/report/text.hpp"

#include <limits>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

namespace annulus::cli {

namespace {

std::vector<std::string> engine_names() {
    std::vector<std::string> names;
    for (const annulus_engine engine : engines)
        names.emplace_back(annulus_engine_name(engine));
    return names;
}

// The first is the default.
constexpr std::pair<annulus_exchange, const char *> exchanges[] = {
    {ANNULUS_EXCHANGE_AUTO, "auto"}, {ANNULUS_EXCHANGE_RING, "ring"}, {ANNULUS_EXCHANGE_GATHER, "gather"}};

std::vector<std::string> exchange_names() {
    std::vector<std::string> names;
    for (const auto &[exchange, name] : exchanges)
        names.emplace_back(name);
    return names;
}

DeviceChoice parse_device(const std::string &text) {
    constexpr std::string_view cuda = "cuda:";
    if (text == "cpu")
        return {ANNULUS_DEVICE_CPU, 0};
    if (text == "cuda")
        return {ANNULUS_DEVICE_CUDA, 0};
    if (text.starts_with(cuda)) {
        const std::optional<std::int64_t> index = parse_integer(std::string_view(text).substr(cuda.size()));
        if (index && *index >= 0 && *index <= std::numeric_limits<std::int32_t>::max())
            return {ANNULUS_DEVICE_CUDA, static_cast<std::int32_t>(*index)};
    }
    throw bad_input("--device " + text + ": must be cpu, cuda, or cuda:I with a device's number I, counted from 0");
}

} // namespace

void ExecutionOptions::add_to(Command &command) {
    const std::string group = "Execution";
    command
        .parsed(
            "--device", [this](const std::string &text) { device = parse_device(text); },
            "Where: cpu (default), cuda, or cuda:I, the I-th CUDA device, counted from 0")
        .suggests({"cpu", "cuda"})
        .value("NAME")
        .group(group);
    command.text("--engine", engine, "Who computes (auto unless given)")
        .one_of(engine_names())
        .value("NAME")
        .group(group);
    command
        .text("--exchange", exchange,
              "How ranks send rows of K and V: in a ring, or gathered at once, which is faster and holds more of "
              "them at a time; auto, the default, gathers if they take no more memory than a rank's own rows, if they "
              "take at most four times that memory and the ring would have more than 8 rounds, or if they take at most "
              "eight times that memory and 256 MiB")
        .one_of(exchange_names())
        .value("NAME")
        .group(group);
    command
        .number<std::int32_t>(
            "--threads", threads, 0,
            "CPU threads, which ranks share; 0, the default, is what ANNULUS_NUM_THREADS says, or one "
            "for each CPU that the process may use and its cgroup leaves it time for")
        .value("T")
        .group(group);
    command.flag("--tf32", allow_tf32, "Products of float32 numbers may be TF32").group(group);
    const auto set_limit = [this](const std::string &text) {
        const std::int64_t most = std::numeric_limits<std::int64_t>::max();
        if (text.ends_with('B')) // in other options a B means a billion
            throw bad_input("--workspace-limit " + text + ": must be a number of bytes without a B, such as 256Mi");
        workspace_limit = static_cast<std::uint64_t>(whole_number("--workspace-limit", text, 0, most));
    };
    command
        .parsed("--workspace-limit", set_limit,
                "The most workspace a call may take, such as 256Mi; 0, the default, is the engine's own choice")
        .value("BYTES")
        .group(group);
}

void ExecutionOptions::apply_to(annulus_config *config) const {
    for (const annulus_engine value : engines)
        if (engine == annulus_engine_name(value))
            check(annulus_config_set_engine(config, value), "--engine");
    for (const auto &[value, name] : exchanges)
        if (exchange == name)
            check(annulus_config_set_exchange(config, value), "--exchange");
    check(annulus_config_set_allow_tf32(config, allow_tf32));
    check(annulus_config_set_workspace_limit(config, workspace_limit), "--workspace-limit");
}

int ExecutionOptions::thread_count() const {
    if (threads > 0)
        return threads;
    annulus_context *created = nullptr;
    check(annulus_context_create(&created, ANNULUS_DEVICE_CPU, 0));
    const Context context(created);
    std::int32_t count = 0;
    check(annulus_context_get_threads(context.get(), &count));
    return count;
}

std::string exchange_name(annulus_exchange exchange) {
    for (const auto &[value, name] : exchanges)
        if (value == exchange)
            return name;
    return exchanges[0].second;
}

} // namespace annulus::cli
