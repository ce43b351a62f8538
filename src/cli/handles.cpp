// SPDX-License-Identifier: Apache-2.0
#include "handles.hpp"

namespace annulus::cli {

void check(annulus_status status, const std::string &subject) {
    if (status == ANNULUS_OK)
        return;
    const bool users_fault = status == ANNULUS_ERROR_ARGUMENT || status == ANNULUS_ERROR_UNSUPPORTED;
    throw Failure(users_fault ? exit_bad_input : exit_failed,
                  (subject.empty() ? "" : subject + ": ") + annulus_last_error());
}

Config make_config() {
    annulus_config *config = nullptr;
    check(annulus_config_create(&config));
    return Config(config);
}

Context make_context(const annulus_config *config, int threads) {
    annulus_context *handle = nullptr;
    check(annulus_context_create(&handle, ANNULUS_DEVICE_CPU, 0));
    Context context(handle);
    check(annulus_context_set_config(handle, config));
    check(annulus_context_set_threads(handle, threads), "--threads");
    return context;
}

} // namespace annulus::cli
