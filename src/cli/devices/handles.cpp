// SPDX-License-Identifier: Apache-2.0
#include "cli/devices/handles.hpp"

namespace annulus::cli {

std::string device_name(const DeviceChoice &device) {
    return device.kind == ANNULUS_DEVICE_CPU ? "cpu" : "cuda:" + std::to_string(device.index);
}

void check(annulus_status status, const std::string &subject) {
    if (status == ANNULUS_OK)
        return;
    const std::string message = (subject.empty() ? "" : subject + ": ") + annulus_last_error();
    if (status == ANNULUS_ERROR_COMM || status == ANNULUS_ERROR_NCCL || status == ANNULUS_ERROR_MPI ||
        status == ANNULUS_ERROR_DECLINED)
        throw ConnectionFailure(message);
    const bool users_fault = status == ANNULUS_ERROR_ARGUMENT || status == ANNULUS_ERROR_UNSUPPORTED;
    throw Failure(users_fault ? exit_bad_input : exit_failed, message);
}

Config make_config() {
    annulus_config *config = nullptr;
    check(annulus_config_create(&config));
    return Config(config);
}

Context create_context(const DeviceChoice &device) {
    annulus_context *context = nullptr;
    check(annulus_context_create(&context, device.kind, device.index), "--device " + device_name(device));
    return Context(context);
}

} // namespace annulus::cli
