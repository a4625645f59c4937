// Graphs: nodes with work, executables made of them, updates and launches.
#include <algorithm>

#include "objects.h"
#include "works.h"

namespace simulator {

namespace {

// Nodes in an order in which each comes after those it depends on.
std::vector<cudaGraphNode_t> ordered(cudaGraph_t graph) {
    std::vector<cudaGraphNode_t> order;
    std::unordered_set<cudaGraphNode_t> done;
    const auto ready = [&](const CUgraphNode_st& node) {
        return std::ranges::all_of(node.dependencies,
                                   [&](cudaGraphNode_t each) { return done.contains(each); });
    };
    // Nodes are nearly always added in such an order: then one pass is enough.
    for (std::size_t before = ~std::size_t{0}; before != order.size();) {
        before = order.size();
        for (const auto& node : graph->nodes) {
            if (done.contains(node.get()) || !ready(*node)) continue;
            done.insert(node.get());
            order.push_back(node.get());
        }
    }
    return order;
}

std::vector<CUgraphExec_st::Node> executable_nodes(cudaGraph_t graph) {
    std::vector<CUgraphExec_st::Node> nodes;
    std::unordered_map<cudaGraphNode_t, std::size_t> positions;
    for (const cudaGraphNode_t node : ordered(graph)) {
        CUgraphExec_st::Node& added =
            nodes.emplace_back(node, node->work, std::vector<std::size_t>{}, node->enabled);
        for (const cudaGraphNode_t each : node->dependencies) {
            added.dependencies.push_back(positions.at(each));
        }
        positions[node] = nodes.size() - 1;
    }
    return nodes;
}

cudaGraphExecUpdateResult difference(const std::vector<CUgraphExec_st::Node>& old,
                                     const std::vector<CUgraphExec_st::Node>& fresh,
                                     std::size_t* at) {
    *at = 0;
    if (old.size() != fresh.size()) return cudaGraphExecUpdateErrorTopologyChanged;
    for (; *at < old.size(); ++*at) {
        const auto &before = old[*at], &after = fresh[*at];
        if (before.work.index() != after.work.index()) {
            return cudaGraphExecUpdateErrorNodeTypeChanged;
        }
        if (before.dependencies != after.dependencies) {
            return cudaGraphExecUpdateErrorTopologyChanged;
        }
    }
    return cudaGraphExecUpdateSuccess;
}

}  // namespace

template <typename Object>
std::unordered_set<Object*>& live() {
    static auto* const all = new std::unordered_set<Object*>;
    return *all;
}

template SIMULATOR_API std::unordered_set<CUstream_st*>& live();
template SIMULATOR_API std::unordered_set<CUevent_st*>& live();
template SIMULATOR_API std::unordered_set<CUgraphNode_st*>& live();
template SIMULATOR_API std::unordered_set<CUgraph_st*>& live();
template SIMULATOR_API std::unordered_set<CUgraphExec_st*>& live();

std::vector<Work> ordered_works(cudaGraph_t graph) {
    const Lock lock(mutex());
    std::vector<Work> works;
    if (!live<CUgraph_st>().contains(graph)) return works;
    for (const cudaGraphNode_t node : ordered(graph)) {
        if (node->enabled) works.push_back(node->work);
    }
    return works;
}

cudaGraph_t create_graph() {
    const Lock lock(mutex());
    const cudaGraph_t graph = new CUgraph_st;
    live<CUgraph_st>().insert(graph);
    return graph;
}

cudaError_t destroy_graph(cudaGraph_t graph) {
    const Lock lock(mutex());
    if (live<CUgraph_st>().erase(graph) == 0) return cudaErrorInvalidValue;
    for (const auto& node : graph->nodes) live<CUgraphNode_st>().erase(node.get());
    delete graph;
    return cudaSuccess;
}

cudaError_t add_node(cudaGraph_t graph, Work work, const cudaGraphNode_t* dependencies,
                     std::size_t count, cudaGraphNode_t* node) {
    const Lock lock(mutex());
    if (!live<CUgraph_st>().contains(graph)) return cudaErrorInvalidValue;
    auto added = std::make_unique<CUgraphNode_st>();
    for (std::size_t i = 0; i < count; ++i) {
        if (!live<CUgraphNode_st>().contains(dependencies[i]) || dependencies[i]->graph != graph) {
            return cudaErrorInvalidValue;
        }
        added->dependencies.push_back(dependencies[i]);
    }
    added->graph = graph;
    added->work = std::move(work);
    *node = added.get();
    live<CUgraphNode_st>().insert(added.get());
    graph->nodes.push_back(std::move(added));
    return cudaSuccess;
}

cudaError_t instantiate(cudaGraph_t graph, unsigned long long flags, cudaGraphExec_t* executable) {
    const Lock lock(mutex());
    if (!live<CUgraph_st>().contains(graph)) return cudaErrorInvalidValue;
    auto made = std::make_unique<CUgraphExec_st>();
    made->nodes = executable_nodes(graph);
    made->flags = flags;
    if (made->nodes.size() != graph->nodes.size()) return cudaErrorInvalidValue;  // a cycle
    *executable = made.release();
    live<CUgraphExec_st>().insert(*executable);
    return cudaSuccess;
}

cudaError_t destroy_executable(cudaGraphExec_t executable) {
    const Lock lock(mutex());
    if (live<CUgraphExec_st>().erase(executable) == 0) return cudaErrorInvalidValue;
    delete executable;
    return cudaSuccess;
}

cudaError_t update(cudaGraphExec_t executable, cudaGraph_t graph,
                   cudaGraphExecUpdateResultInfo* result) {
    const Lock lock(mutex());
    if (!live<CUgraphExec_st>().contains(executable) || !live<CUgraph_st>().contains(graph)) {
        return cudaErrorInvalidValue;
    }
    std::vector<CUgraphExec_st::Node> fresh = executable_nodes(graph);
    std::size_t at = 0;
    const cudaGraphExecUpdateResult differs = difference(executable->nodes, fresh, &at);
    if (result != nullptr) {
        *result = {};
        result->result = differs;
        if (differs != cudaGraphExecUpdateSuccess && at < fresh.size()) {
            result->errorNode = fresh[at].origin;
        }
    }
    if (differs != cudaGraphExecUpdateSuccess) return cudaErrorGraphExecUpdateFailure;
    for (std::size_t i = 0; i < fresh.size(); ++i) {  // the first graph's handles stay
        executable->nodes[i].work = std::move(fresh[i].work);
    }
    return cudaSuccess;
}

cudaError_t launch_graph(cudaGraphExec_t executable, cudaStream_t handle) {
    if (const cudaError_t error = use_card(current_card())) return error;
    std::vector<Node> nodes;
    {
        const Lock lock(mutex());
        const cudaStream_t stream = find_stream(handle);
        if (!live<CUgraphExec_st>().contains(executable)) return cudaErrorInvalidValue;
        if (stream == nullptr) return cudaErrorInvalidResourceHandle;
        for (const CUgraphExec_st::Node& node : executable->nodes) {
            if (stream->capture == nullptr) {
                nodes.push_back({node.work, node.dependencies, node.enabled});
            } else if (!node.enabled) {
                continue;
            } else if (const cudaError_t error = capture_work(stream, node.work)) {
                return error;
            }
        }
    }
    return perform_graph(handle, nodes);
}

}  // namespace simulator
