// SPDX-License-Identifier: Apache-2.0
#include "place.hpp"

#include "cuda.hpp"
#include "host_place.hpp"

namespace annulus::cli {

void Release::operator()(std::byte *memory) const {
    place->release(memory);
}

double measure(Yardstick &yardstick, Place &place) {
    if (yardstick.rates.size() == 0)
        yardstick.work(); // warms up
    const double rate = yardstick.amount / place.seconds_of(yardstick.work);
    yardstick.rates.add(rate);
    return rate;
}

std::unique_ptr<Place> make_place(const DeviceChoice &device, int threads) {
    if (device.kind == ANNULUS_DEVICE_CPU)
        return make_host_place(threads);
    create_context(device); // the library's own words for a device that it cannot use
    return make_cuda_place(device.index);
}

} // namespace annulus::cli
