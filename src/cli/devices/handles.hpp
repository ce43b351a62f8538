// SPDX-License-Identifier: Apache-2.0
// The library's handles as owning pointers, and its statuses as exceptions.
#pragma once

#include "cli/report/failure.hpp"

#include <annulus/annulus.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace annulus::cli {

// The device number `index` of a kind.
struct DeviceChoice {
    annulus_device kind = ANNULUS_DEVICE_CPU;
    std::int32_t index = 0;
};

// Returns the device's name, as --device takes it.
std::string device_name(const DeviceChoice &device);

// Throws the library's message unless `status` is ANNULUS_OK. If `subject`, what the user wrote, is not empty, the
// message begins with it.
void check(annulus_status status, const std::string &subject = {});

struct Destroy {
    void operator()(annulus_config *config) const { annulus_config_destroy(config); }
    void operator()(annulus_context *context) const { annulus_context_destroy(context); }
    void operator()(annulus_comm *comm) const { annulus_comm_destroy(comm); }
};
using Config = std::unique_ptr<annulus_config, Destroy>;
using Context = std::unique_ptr<annulus_context, Destroy>;
using Comm = std::unique_ptr<annulus_comm, Destroy>;

Config make_config();
std::int32_t branch_count(const annulus_config *config);
// Returns all branches of the config.
std::vector<annulus_branch> get_branches(const annulus_config *config);
Context create_context(const DeviceChoice &device);

} // namespace annulus::cli
