// SPDX-License-Identifier: Apache-2.0
#include "cli/commands/links.hpp"

#include "cli/arrays/input_file.hpp"
#include "cli/commands/tuning.hpp"
#include "cli/report/failure.hpp"
#include "cli/report/text.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <string_view>
#include <utility>
#include <vector>

namespace annulus::cli {

namespace {

using Json = nlohmann::ordered_json;

constexpr const char *format_key = "annulus_links";
constexpr int format_version = 1;
constexpr const char *cpu_device = "cpu", *gpu_device = "cuda";

Json json_of(const Link &link) {
    return {{"exchange_seconds", link.exchange_seconds}, {"bytes_per_second", link.bytes_per_second}};
}

// Reads the members of a JSON object. `subject` begins the messages.
class Members {
  public:
    Members(const Json &object, std::string subject) : object_(object), subject_(std::move(subject)) {
        if (!object_.is_object())
            throw bad_input(subject_ + ": must be an object");
    }

    // Throws if there is another member than `keys`.
    void check_keys(std::initializer_list<std::string> keys) const {
        for (const auto &item : object_.items())
            if (std::ranges::find(keys, item.key()) == keys.end())
                throw bad_input(subject_ + ": unknown '" + item.key() + "'; it may have " +
                                joined(std::vector<std::string>(keys), ", "));
    }
    bool has(const char *key) const { return object_.contains(key); }
    const Json &member(const char *key) const {
        if (!has(key))
            throw bad_input(subject_ + ": '" + key + "' is missing");
        return object_.at(key);
    }
    // Returns a number of at least 0, or more than 0.
    double number(const char *key, bool may_be_zero) const {
        const Json &value = member(key);
        const double number = value.is_number() ? value.get<double>() : -1;
        if (!std::isfinite(number) || number < 0 || (number == 0 && !may_be_zero))
            throw bad_input(subject_ + ": '" + key + "' is " + value.dump() + "; it must be a number " +
                            (may_be_zero ? "of at least 0" : "above 0"));
        return number;
    }
    std::optional<Link> link(const char *key) const {
        if (!has(key))
            return std::nullopt;
        const Members members(member(key), subject_ + ": " + key);
        members.check_keys({"exchange_seconds", "bytes_per_second"});
        return Link{members.number("exchange_seconds", true), members.number("bytes_per_second", false)};
    }

  private:
    const Json &object_;
    std::string subject_;
};

} // namespace

Links known_links(const GpuModel &model, int hosts) {
    Links links{
        "data sheets", true, tuning::host_agreement_seconds, Link{tuning::host_exchange_seconds, model.link_rate}, {}};
    if (hosts > 1) {
        links.agreement_seconds = tuning::network_agreement_seconds + tuning::network_hop_seconds * (hosts - 1);
        links.other_hosts = Link{tuning::network_exchange_seconds, tuning::network_rate};
    }
    return links;
}

Links read_links(const std::string &path) {
    const InputFile file("--links", path);
    const std::string_view text(reinterpret_cast<const char *>(file.data()), file.bytes());
    const Json json = Json::parse(text, nullptr, false);
    if (json.is_discarded())
        throw bad_input(file.subject() + ": is not JSON");
    const Members members(json, file.subject());
    if (members.number(format_key, false) != format_version)
        throw bad_input(file.subject() + ": '" + format_key + "' is " + members.member(format_key).dump() +
                        "; it must be " + std::to_string(format_version));
    members.check_keys({format_key, "source", "device", "agreement_seconds", "same_host", "other_hosts"});
    const Json &device = members.member("device");
    if (device != gpu_device)
        throw bad_input(file.subject() + ": 'device' is " + device.dump() + "; it must be \"" + gpu_device +
                        "\", as bench --device cuda --links writes it");
    const Json &source = members.member("source");
    if (!source.is_string())
        throw bad_input(file.subject() + ": 'source' is " + source.dump() + "; it must be a text");
    return {source.get<std::string>(), true, members.number("agreement_seconds", true), members.link("same_host"),
            members.link("other_hosts")};
}

std::string links_text(const Links &links) {
    Json json = {{format_key, format_version},
                 {"source", links.source},
                 {"device", links.are_of_gpus ? gpu_device : cpu_device},
                 {"agreement_seconds", links.agreement_seconds}};
    if (links.same_host)
        json["same_host"] = json_of(*links.same_host);
    if (links.other_hosts)
        json["other_hosts"] = json_of(*links.other_hosts);
    return json.dump(2) + "\n";
}

Facts link_facts(const Links &links) {
    Facts facts{"links",
                "Links",
                {{{"source", "according to"}, text_cell(links.source)},
                 {{"agreement_seconds", "agreement"}, seconds_cell(links.agreement_seconds)}}};
    const auto add = [&](const std::string &key, const std::string &title, const Link &link) {
        facts.facts.push_back(
            {{key + "_exchange_seconds", title + ", an exchange"}, seconds_cell(link.exchange_seconds)});
        facts.facts.push_back(
            {{key + "_bytes_per_second", title + ", rate"}, scaled_cell(link.bytes_per_second, "B/s")});
    };
    if (links.same_host)
        add("same_host", "in a host", *links.same_host);
    if (links.other_hosts)
        add("other_hosts", "between hosts", *links.other_hosts);
    return facts;
}

} // namespace annulus::cli
