// SPDX-License-Identifier: Apache-2.0
#include "cli/report/png.hpp"

#include "cli/report/failure.hpp"

#include <png.h>

namespace annulus::cli {

std::string png_of(const std::vector<Color> &points, std::int64_t width) {
    png_image image{};
    image.version = PNG_IMAGE_VERSION;
    image.format = PNG_FORMAT_RGBA;
    image.width = static_cast<png_uint_32>(width);
    image.height = static_cast<png_uint_32>(points.size() / static_cast<std::size_t>(width));
    png_alloc_size_t bytes = PNG_IMAGE_PNG_SIZE_MAX(image);
    std::string file(bytes, '\0');
    if (!png_image_write_to_memory(&image, file.data(), &bytes, 0, points.data(), 0, nullptr))
        throw Failure(exit_failed, std::string("libpng: ") + image.message);
    file.resize(bytes);
    return file;
}

} // namespace annulus::cli
