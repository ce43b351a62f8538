// SPDX-License-Identifier: Apache-2.0
// annulus info: what this build is and can use here.
#include "cli/commands/commands.hpp"
#include "cli/devices/cuda.hpp"
#include "cli/devices/execution_options.hpp"
#include "cli/devices/handles.hpp"
#include "cli/report/report.hpp"

#include <memory>
#include <string>

namespace annulus::cli {

namespace {

std::int32_t device_count(annulus_device device) {
    std::int32_t count = 0;
    check(annulus_device_count(device, &count));
    return count;
}

void info(const std::string &format) {
    Report report;
    report.add(Facts{"build",
                     "Build",
                     {{{"version", "version"}, text_cell(annulus_version_string())},
                      {{"build_info", "build"}, text_cell(annulus_build_info())}}});
    Table table_of_engines{"engines", "Engines", {{"name", "name"}}, {}};
    for (const annulus_engine engine : engines)
        table_of_engines.rows.push_back({text_cell(annulus_engine_name(engine))});
    report.add(table_of_engines);
    const std::int32_t cuda_count = device_count(ANNULUS_DEVICE_CUDA);
    report.add(Table{"devices",
                     "Devices",
                     {{"kind", "kind"}, {"count", "count"}},
                     {{text_cell("cpu"), count_cell(device_count(ANNULUS_DEVICE_CPU))},
                      {text_cell("cuda"), count_cell(cuda_count)}}});
    Table table{"cuda_devices",
                "CUDA devices",
                {{"device", "device"},
                 {"name", "name"},
                 {"compute_capability", "compute capability"},
                 {"memory_bytes", "memory"}},
                {}};
    for (const CudaDevice &device : cuda_devices(cuda_count))
        table.rows.push_back(
            {text_cell(device_name({ANNULUS_DEVICE_CUDA, static_cast<std::int32_t>(table.rows.size())})),
             text_cell(device.name), text_cell(std::to_string(device.major) + "." + std::to_string(device.minor)),
             bytes_cell(device.memory_bytes)});
    if (!table.rows.empty())
        report.add(table);
    report.print(format);
}

} // namespace

void add_info_command(CLI::App &program) {
    auto format = std::make_shared<std::string>("text");
    CLI::App *command = program.add_subcommand("info", "Say the version, how it was built, its engines and devices.");
    add_format_option(*command, *format);
    command->callback([format] { info(*format); });
}

} // namespace annulus::cli
