// SPDX-License-Identifier: Apache-2.0
#include "cli/devices/memory.hpp"

#include "cli/devices/cuda.hpp"
#include "cli/devices/host_memory.hpp"

namespace annulus::cli {

void Release::operator()(std::byte *data) const {
    memory->release(data);
}

double measure(Yardstick &yardstick, Memory &memory) {
    if (yardstick.rates.size() == 0)
        yardstick.work(); // warms up
    const double rate = yardstick.amount / memory.seconds_of(yardstick.work);
    yardstick.rates.add(rate);
    return rate;
}

std::unique_ptr<Memory> make_memory(const DeviceChoice &device, int threads) {
    if (device.kind == ANNULUS_DEVICE_CPU)
        return make_host_memory(threads);
    create_context(device); // throws the library's message if it cannot use the device
    return make_cuda_memory(device.index);
}

} // namespace annulus::cli
