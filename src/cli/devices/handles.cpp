// SPDX-License-Identifier: Apache-2.0
#include "cli/devices/handles.hpp"

#include <utility>

namespace annulus::cli {

namespace {

// The names of arguments in messages of the library, and in `annulus plan` and --branch.
constexpr std::pair<const char *, const char *> names[] = {
    {"sequence_length", "tokens N"},  {"batch", "batch B"},   {"heads", "heads H"}, {"kv_heads", "key/value heads G"},
    {"head_dim", "head dimension D"}, {"grid_width", "width"}};

// Returns the library's last message. If it begins with the name of an argument, the program's name replaces it.
std::string last_message() {
    std::string message = annulus_last_error();
    for (const auto &[in_c, here] : names)
        if (const std::string name = std::string(in_c) + " is "; message.starts_with(name))
            return std::string(here) + " is " + message.substr(name.size());
    return message;
}

} // namespace

std::string device_name(const DeviceChoice &device) {
    return device.kind == ANNULUS_DEVICE_CPU ? "cpu" : "cuda:" + std::to_string(device.index);
}

void check(annulus_status status, const std::string &subject) {
    if (status == ANNULUS_OK)
        return;
    const std::string message = (subject.empty() ? "" : subject + ": ") + last_message();
    if (status == ANNULUS_ERROR_COMM || status == ANNULUS_ERROR_COMM_LIBRARY || status == ANNULUS_ERROR_DECLINED)
        throw ConnectionFailure(message);
    const bool is_users_fault = status == ANNULUS_ERROR_ARGUMENT || status == ANNULUS_ERROR_UNSUPPORTED;
    throw Failure(is_users_fault ? exit_bad_input : exit_failed, message);
}

Config make_config() {
    annulus_config *config = nullptr;
    check(annulus_config_create(&config));
    return Config(config);
}

std::int32_t branch_count(const annulus_config *config) {
    std::int32_t count = 0;
    check(annulus_config_branch_count(config, &count));
    return count;
}

std::vector<annulus_branch> get_branches(const annulus_config *config) {
    std::vector<annulus_branch> branches;
    for (std::int32_t i = 0; i < branch_count(config); ++i) {
        annulus_branch branch = ANNULUS_BRANCH_INIT(0, 1);
        check(annulus_config_get_branch(config, i, &branch));
        branches.push_back(branch);
    }
    return branches;
}

Context create_context(const DeviceChoice &device) {
    annulus_context *context = nullptr;
    check(annulus_context_create(&context, device.kind, device.index), "--device " + device_name(device));
    return Context(context);
}

} // namespace annulus::cli
