// SPDX-License-Identifier: Apache-2.0
#include "cli/commands/nearest_neighbor.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>
#include <utility>

namespace annulus::cli {

namespace {

using Axis = double Point::*;

// A point of a k-d tree. The middle node of a tree divides the other nodes along `axis`: each half is a tree.
struct Node {
    Point point;
    Axis axis;
};
using Tree = std::span<Node>;

// Returns the axis along which the points are spread most. Points in a line are then divided as well as others.
Axis widest_axis(Tree tree) {
    const auto spread = [&](Axis axis) {
        const auto value = [axis](const Node &node) { return node.point.*axis; };
        const auto [least, greatest] = std::ranges::minmax_element(tree, {}, value);
        return value(*greatest) - value(*least);
    };
    return spread(&Point::x) < spread(&Point::y) ? &Point::y : &Point::x;
}

void build(Tree tree) {
    if (tree.empty())
        return;
    const std::size_t middle = tree.size() / 2;
    const Axis axis = widest_axis(tree);
    std::nth_element(tree.begin(), tree.begin() + static_cast<std::ptrdiff_t>(middle), tree.end(),
                     [axis](const Node &a, const Node &b) { return a.point.*axis < b.point.*axis; });
    tree[middle].axis = axis;
    build(tree.first(middle));
    build(tree.subspan(middle + 1));
}

// Lowers `nearest`, a squared distance, to that of the point of the tree that is nearest to `from` and differs from it.
void search(Tree tree, const Point &from, double &nearest) {
    if (tree.empty())
        return;
    const std::size_t middle = tree.size() / 2;
    const auto &[point, axis] = tree[middle];
    const double dx = point.x - from.x, dy = point.y - from.y;
    if (point != from)
        nearest = std::min(nearest, dx * dx + dy * dy);
    Tree near = tree.first(middle), far = tree.subspan(middle + 1);
    const double distance = from.*axis - point.*axis; // from the line that divides the halves
    if (distance > 0)
        std::swap(near, far);
    search(near, from, nearest);
    if (distance * distance < nearest)
        search(far, from, nearest);
}

} // namespace

std::optional<double> median_nearest_distance(std::vector<Point> points) {
    std::ranges::sort(points, {}, [](const Point &point) { return std::pair(point.x, point.y); });
    points.erase(std::unique(points.begin(), points.end()), points.end());
    if (points.size() < 2)
        return std::nullopt;
    std::vector<Node> tree;
    for (const Point &point : points)
        tree.push_back({point, &Point::x});
    build(tree);
    std::vector<double> distances;
    for (const Point &point : points) {
        double nearest = std::numeric_limits<double>::infinity();
        search(tree, point, nearest);
        distances.push_back(std::sqrt(nearest));
    }
    std::ranges::sort(distances);
    const std::size_t count = distances.size();
    return (distances[(count - 1) / 2] + distances[count / 2]) / 2;
}

} // namespace annulus::cli
