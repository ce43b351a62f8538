// SPDX-License-Identifier: Apache-2.0
#include "cli/report/png.hpp"

#include "cli/report/failure.hpp"

#include <cairo.h>

#include <cmath>
#include <memory>
#include <new>

namespace annulus::cli {

const bool has_png = true;

namespace {

using Surface = std::unique_ptr<cairo_surface_t, decltype(&cairo_surface_destroy)>;
using Pen = std::unique_ptr<cairo_t, decltype(&cairo_destroy)>;

void check_drawn(cairo_status_t status) {
    if (status != CAIRO_STATUS_SUCCESS)
        throw Failure(exit_failed, std::string("cairo: ") + cairo_status_to_string(status));
}

Surface checked(cairo_surface_t *made) {
    Surface surface(made, cairo_surface_destroy);
    check_drawn(cairo_surface_status(made));
    return surface;
}

// Returns a surface on the memory of `points`. Cairo only reads it.
Surface surface_of(const Points &points) {
    auto *pixels = reinterpret_cast<unsigned char *>(const_cast<Color *>(points.colors.data()));
    const int columns = static_cast<int>(points.columns);
    return checked(cairo_image_surface_create_for_data(pixels, CAIRO_FORMAT_RGB24, columns,
                                                       static_cast<int>(points.rows()),
                                                       cairo_format_stride_for_width(CAIRO_FORMAT_RGB24, columns)));
}

std::string file_of(const Surface &surface) {
    std::string file;
    const auto write = [](void *to, const unsigned char *bytes, unsigned count) {
        try {
            static_cast<std::string *>(to)->append(reinterpret_cast<const char *>(bytes), count);
        } catch (const std::bad_alloc &) {
            return CAIRO_STATUS_NO_MEMORY;
        }
        return CAIRO_STATUS_SUCCESS;
    };
    check_drawn(cairo_surface_write_to_png_stream(surface.get(), write, &file));
    return file;
}

void set_color(const Pen &pen, Color color) {
    const auto share = [color](int bits) { return (color >> bits & 255) / 255.0; };
    cairo_set_source_rgb(pen.get(), share(16), share(8), share(0));
}

// Paints a picture with each edge between two pixels.
void paint(const Pen &pen, const Drawing::Picture &picture, double pixels) {
    const double x = std::round(picture.x * pixels), y = std::round(picture.y * pixels);
    const double width = std::round(picture.width * pixels), height = std::round(picture.height * pixels);
    set_color(pen, faint);
    cairo_set_line_width(pen.get(), pixels);
    cairo_rectangle(pen.get(), x - pixels / 2, y - pixels / 2, width + pixels, height + pixels);
    cairo_stroke(pen.get());

    const Surface points = surface_of(picture.points);
    cairo_save(pen.get());
    cairo_translate(pen.get(), x, y);
    cairo_scale(pen.get(), width / static_cast<double>(picture.points.columns),
                height / static_cast<double>(picture.points.rows()));
    cairo_set_source_surface(pen.get(), points.get(), 0, 0);
    cairo_pattern_set_filter(cairo_get_source(pen.get()), CAIRO_FILTER_NEAREST);
    cairo_paint(pen.get());
    cairo_restore(pen.get());
}

} // namespace

std::string png_of(const Points &points) {
    return file_of(surface_of(points));
}

std::string png_of(const Drawing &drawing) {
    const double pixels = drawing.pixels;
    const Surface surface =
        checked(cairo_image_surface_create(CAIRO_FORMAT_RGB24, static_cast<int>(std::ceil(drawing.width * pixels)),
                                           static_cast<int>(std::ceil(drawing.height * pixels))));
    const Pen pen(cairo_create(surface.get()), cairo_destroy);
    set_color(pen, 0xffffff);
    cairo_paint(pen.get());
    for (const Drawing::Picture &picture : drawing.pictures)
        paint(pen, picture, pixels);
    set_color(pen, faint);
    cairo_set_line_width(pen.get(), pixels);
    for (const Drawing::Line &line : drawing.lines) {
        cairo_move_to(pen.get(), line.x1 * pixels, line.y1 * pixels);
        cairo_line_to(pen.get(), line.x2 * pixels, line.y2 * pixels);
        cairo_stroke(pen.get());
    }
    set_color(pen, ink);
    cairo_select_font_face(pen.get(), "sans-serif", CAIRO_FONT_SLANT_NORMAL, CAIRO_FONT_WEIGHT_NORMAL);
    cairo_set_font_size(pen.get(), 12 * pixels);
    for (const Drawing::Words &words : drawing.words) {
        cairo_text_extents_t extents;
        cairo_text_extents(pen.get(), words.text.c_str(), &extents);
        const double left = words.anchor == Svg::Anchor::start    ? 0
                            : words.anchor == Svg::Anchor::middle ? extents.x_advance / 2
                                                                  : extents.x_advance;
        cairo_move_to(pen.get(), words.x * pixels - left, words.y * pixels);
        cairo_show_text(pen.get(), words.text.c_str());
    }
    check_drawn(cairo_status(pen.get()));
    return file_of(surface);
}

} // namespace annulus::cli
