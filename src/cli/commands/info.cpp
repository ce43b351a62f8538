// SPDX-License-Identifier: Apache-2.0
// annulus info: describes this build and what it can use on this machine.
#include "cli/commands/commands.hpp"
#include "cli/commands/context.hpp"
#include "cli/devices/cuda.hpp"
#include "cli/devices/execution_options.hpp"
#include "cli/devices/handles.hpp"
#include "cli/report/report.hpp"

#include <memory>
#include <string>
#include <vector>

namespace annulus::cli {

namespace {

std::int32_t device_count(annulus_device device) {
    std::int32_t count = 0;
    check(annulus_device_count(device, &count));
    return count;
}

// Returns why an engine cannot compute on a device, tested with bfloat16 and D = 64. Returns an empty string if it can.
std::string obstacle(annulus_engine engine, const DeviceChoice &device) {
    try {
        const Config config = make_config();
        const annulus_branch branch = ANNULUS_BRANCH_INIT(0, 1);
        check(annulus_config_add_branch(config.get(), &branch, nullptr));
        annulus_context *created = nullptr;
        check(annulus_context_create(&created, device.kind, device.index));
        const Context context(created);
        check(annulus_context_set_config(context.get(), config.get()));
        annulus_problem problem = ANNULUS_PROBLEM_INIT;
        problem.dtype = ANNULUS_BFLOAT16;
        problem.heads = problem.kv_heads = 1;
        problem.head_dim = 64;
        problem.sequence_length = 64;
        problem.batch = 1;
        check(annulus_check_engine(context.get(), &problem, ANNULUS_PASS_BACKWARD, engine));
        return "";
    } catch (const Failure &failure) {
        return failure.what();
    }
}

Cell reason_cell(const std::string &reason) {
    Cell cell = text_cell(reason);
    if (reason.empty())
        cell.value = {};
    return cell;
}

Table engine_table(std::int32_t cuda_count) {
    std::vector<DeviceChoice> devices = {{ANNULUS_DEVICE_CPU, 0}};
    for (std::int32_t i = 0; i < cuda_count; ++i)
        devices.push_back({ANNULUS_DEVICE_CUDA, i});
    Table table{
        "engines", "Engines", {{"name", "name"}, {"device", "device"}, {"runs", "runs"}, {"obstacle", "why not"}}, {}};
    for (const DeviceChoice &device : devices)
        for (const annulus_engine engine : engines) {
            const std::string reason = obstacle(engine, device);
            Cell runs = text_cell(reason.empty() ? "yes" : "no");
            runs.value = reason.empty();
            table.rows.push_back(
                {text_cell(annulus_engine_name(engine)), text_cell(device_name(device)), runs, reason_cell(reason)});
        }
    return table;
}

Table device_table(std::int32_t cuda_count) {
    const std::string reason = cuda_count > 0 ? "" : obstacle(ANNULUS_ENGINE_AUTO, {ANNULUS_DEVICE_CUDA, 0});
    return {"devices",
            "Devices",
            {{"kind", "kind"}, {"count", "count"}, {"obstacle", "why none"}},
            {{text_cell("cpu"), count_cell(device_count(ANNULUS_DEVICE_CPU)), reason_cell("")},
             {text_cell("cuda"), count_cell(cuda_count), reason_cell(reason)}}};
}

void info(const std::string &format) {
    Report report;
    report.add(Facts{"build",
                     "Build",
                     {{{"version", "version"}, text_cell(annulus_version_string())},
                      {{"build_info", "build"}, text_cell(annulus_build_info())}}});
    const std::int32_t cuda_count = device_count(ANNULUS_DEVICE_CUDA);
    report.add(device_table(cuda_count));
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
    report.add(engine_table(cuda_count));
    report.print(format);
}

} // namespace

void add_info_command(CLI::App &program) {
    auto format = std::make_shared<std::string>("text");
    Command command(
        program, "info",
        "Say the version, how it was built, its devices, and which engines run on them and why the others do not.");
    add_format_option(command, *format);
    command.example("annulus info --format json");
    command.runs([format] { info(*format); });
}

} // namespace annulus::cli
