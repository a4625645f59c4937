// libcudart: graphs.
#include <algorithm>

#include "cudart.h"
#include "objects.h"

using namespace simulator;

namespace {

cudaError_t add(cudaGraphNode_t* node, cudaGraph_t graph, const cudaGraphNode_t* dependencies,
                std::size_t count, Work work) {
    if (node == nullptr || (dependencies == nullptr && count != 0)) return cudaErrorInvalidValue;
    return add_node(graph, std::move(work), dependencies, count, node);
}

cudaError_t kernel_work(const cudaKernelNodeParams* node, KernelWork* work) {
    if (node == nullptr) return cudaErrorInvalidValue;
    *work = {{.kernel = find_kernel(node->func),
              .card = current_card(),
              .grid = node->gridDim,
              .block = node->blockDim,
              .shared = node->sharedMemBytes},
             node->func};
    return check_launch(work->launch, node->kernelParams, node->extra);
}

cudaGraphNodeType type_of(const Work& work) {
    constexpr cudaGraphNodeType kTypes[] = {
        cudaGraphNodeTypeKernel, cudaGraphNodeTypeMemcpy, cudaGraphNodeTypeMemset,
        cudaGraphNodeTypeHost,   cudaGraphNodeTypeGraph,  cudaGraphNodeTypeEmpty};
    if (work.index() < std::size(kTypes)) return kTypes[work.index()];
    if (const auto* event = std::get_if<EventWork>(&work)) {
        return event->wait ? cudaGraphNodeTypeWaitEvent : cudaGraphNodeTypeEventRecord;
    }
    return std::get<MemoryWork>(work).release ? cudaGraphNodeTypeMemFree
                                              : cudaGraphNodeTypeMemAlloc;
}

// Copies what is asked for into the caller's array; without an array, only the number.
void give(const std::vector<cudaGraphNode_t>& nodes, cudaGraphNode_t* to, std::size_t* count) {
    if (to != nullptr) {
        *count = std::min(*count, nodes.size());
        std::copy_n(nodes.begin(), *count, to);
    } else {
        *count = nodes.size();
    }
}

template <typename Select>
cudaError_t give_nodes(cudaGraph_t graph, cudaGraphNode_t* to, std::size_t* count, Select select) {
    const Lock lock(mutex());
    if (!live<CUgraph_st>().contains(graph) || count == nullptr) return cudaErrorInvalidValue;
    std::vector<cudaGraphNode_t> nodes;
    for (const auto& node : graph->nodes) {
        if (select(*node)) nodes.push_back(node.get());
    }
    give(nodes, to, count);
    return cudaSuccess;
}

// The work of a node in an executable; null: not its node.
CUgraphExec_st::Node* find_node(cudaGraphExec_t executable, cudaGraphNode_t node) {
    if (!live<CUgraphExec_st>().contains(executable)) return nullptr;
    for (auto& each : executable->nodes) {
        if (each.origin == node) return &each;
    }
    return nullptr;
}

cudaError_t set_work(cudaGraphExec_t executable, cudaGraphNode_t node, Work work) {
    const Lock lock(mutex());
    CUgraphExec_st::Node* const found = find_node(executable, node);
    if (found == nullptr || found->work.index() != work.index()) return cudaErrorInvalidValue;
    found->work = std::move(work);
    return cudaSuccess;
}

cudaError_t set_work(cudaGraphNode_t node, Work work) {
    const Lock lock(mutex());
    const bool same = live<CUgraphNode_st>().contains(node) && node->work.index() == work.index();
    if (!same) return cudaErrorInvalidValue;
    node->work = std::move(work);
    return cudaSuccess;
}

template <typename Kind>
cudaError_t get_work(cudaGraphNode_t node, Kind* out) {
    const Lock lock(mutex());
    if (!live<CUgraphNode_st>().contains(node)) return cudaErrorInvalidValue;
    const auto* work = std::get_if<Kind>(&node->work);
    if (work == nullptr) return cudaErrorInvalidValue;
    *out = *work;
    return cudaSuccess;
}

}  // namespace

extern "C" {

cudaError_t cudaGraphCreate(cudaGraph_t* graph, unsigned) {
    SIMULATED();
    if (graph == nullptr) return remember(cudaErrorInvalidValue);
    *graph = create_graph();
    return remember(start());
}

cudaError_t cudaGraphAddKernelNode(cudaGraphNode_t* node, cudaGraph_t graph,
                                   const cudaGraphNode_t* dependencies, std::size_t count,
                                   const cudaKernelNodeParams* parameters) {
    SIMULATED();
    KernelWork work;
    if (const cudaError_t error = kernel_work(parameters, &work)) return remember(error);
    return remember(add(node, graph, dependencies, count, work));
}

cudaError_t cudaGraphAddMemcpyNode(cudaGraphNode_t* node, cudaGraph_t graph,
                                   const cudaGraphNode_t* dependencies, std::size_t count,
                                   const cudaMemcpy3DParms* copy) {
    SIMULATED();
    if (copy == nullptr) return remember(cudaErrorInvalidValue);
    return remember(add(node, graph, dependencies, count, CopyWork{*copy}));
}

cudaError_t cudaGraphAddMemcpyNode1D(cudaGraphNode_t* node, cudaGraph_t graph,
                                     const cudaGraphNode_t* dependencies, std::size_t count,
                                     void* to, const void* from, std::size_t size,
                                     cudaMemcpyKind kind) {
    SIMULATED();
    cudaMemcpy3DParms copy = {};
    copy.dstPtr = {to, size, size, 1};
    copy.srcPtr = {const_cast<void*>(from), size, size, 1};
    copy.extent = {size, 1, 1};
    copy.kind = kind;
    return remember(add(node, graph, dependencies, count, CopyWork{copy}));
}

cudaError_t cudaGraphAddMemsetNode(cudaGraphNode_t* node, cudaGraph_t graph,
                                   const cudaGraphNode_t* dependencies, std::size_t count,
                                   const cudaMemsetParams* set) {
    SIMULATED();
    if (set == nullptr) return remember(cudaErrorInvalidValue);
    return remember(add(node, graph, dependencies, count, FillWork{*set}));
}

cudaError_t cudaGraphAddHostNode(cudaGraphNode_t* node, cudaGraph_t graph,
                                 const cudaGraphNode_t* dependencies, std::size_t count,
                                 const cudaHostNodeParams* host) {
    SIMULATED();
    if (host == nullptr || host->fn == nullptr) return remember(cudaErrorInvalidValue);
    return remember(add(node, graph, dependencies, count, HostWork{host->fn, host->userData}));
}

cudaError_t cudaGraphAddEmptyNode(cudaGraphNode_t* node, cudaGraph_t graph,
                                  const cudaGraphNode_t* dependencies, std::size_t count) {
    SIMULATED();
    return remember(add(node, graph, dependencies, count, EmptyWork{}));
}

cudaError_t cudaGraphAddChildGraphNode(cudaGraphNode_t* node, cudaGraph_t graph,
                                       const cudaGraphNode_t* dependencies, std::size_t count,
                                       cudaGraph_t child) {
    SIMULATED();
    return remember(add(node, graph, dependencies, count, ChildWork{child}));
}

cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t* nodes, std::size_t* count) {
    SIMULATED();
    return remember(give_nodes(graph, nodes, count, [](const CUgraphNode_st&) { return true; }));
}

cudaError_t cudaGraphGetRootNodes(cudaGraph_t graph, cudaGraphNode_t* nodes, std::size_t* count) {
    SIMULATED();
    return remember(give_nodes(graph, nodes, count, [](const CUgraphNode_st& node) {
        return node.dependencies.empty();
    }));
}

cudaError_t cudaGraphNodeGetType(cudaGraphNode_t node, cudaGraphNodeType* type) {
    SIMULATED();
    const Lock lock(mutex());
    const bool known = type != nullptr && live<CUgraphNode_st>().contains(node);
    if (!known) return remember(cudaErrorInvalidValue);
    *type = type_of(node->work);
    return cudaSuccess;
}

cudaError_t cudaGraphNodeGetDependencies(cudaGraphNode_t node, cudaGraphNode_t* nodes,
                                         cudaGraphEdgeData*, std::size_t* count) {
    SIMULATED();
    const Lock lock(mutex());
    const bool known = count != nullptr && live<CUgraphNode_st>().contains(node);
    if (!known) return remember(cudaErrorInvalidValue);
    give(node->dependencies, nodes, count);
    return cudaSuccess;
}

// In mode count without the arguments: they belong to the program, and no kernel reads them.
cudaError_t cudaGraphKernelNodeGetParams(cudaGraphNode_t node, cudaKernelNodeParams* parameters) {
    SIMULATED();
    KernelWork work;
    if (parameters == nullptr) return remember(cudaErrorInvalidValue);
    if (const cudaError_t error = get_work(node, &work)) return remember(error);
    *parameters = {};
    // A captured launch is known by its kernel's handle.
    parameters->func =
        work.function == nullptr ? work.launch.kernel : const_cast<void*>(work.function);
    parameters->gridDim = work.launch.grid;
    parameters->blockDim = work.launch.block;
    parameters->sharedMemBytes = static_cast<unsigned>(work.launch.shared);
    const auto& arguments = work.launch.arguments;  // they live as long as the node has them
    if (arguments != nullptr) parameters->kernelParams = arguments->each.data();
    return cudaSuccess;
}

cudaError_t cudaGraphKernelNodeSetParams(cudaGraphNode_t node,
                                         const cudaKernelNodeParams* parameters) {
    SIMULATED();
    KernelWork work;
    if (const cudaError_t error = kernel_work(parameters, &work)) return remember(error);
    return remember(set_work(node, work));
}

cudaError_t cudaGraphExecKernelNodeSetParams(cudaGraphExec_t executable, cudaGraphNode_t node,
                                             const cudaKernelNodeParams* parameters) {
    SIMULATED();
    KernelWork work;
    if (const cudaError_t error = kernel_work(parameters, &work)) return remember(error);
    return remember(set_work(executable, node, work));
}

cudaError_t cudaGraphMemcpyNodeGetParams(cudaGraphNode_t node, cudaMemcpy3DParms* copy) {
    SIMULATED();
    CopyWork work = {};
    if (copy == nullptr) return remember(cudaErrorInvalidValue);
    if (const cudaError_t error = get_work(node, &work)) return remember(error);
    *copy = work.parameters;
    return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph,
                                 unsigned long long flags) {
    SIMULATED();
    if (executable == nullptr) return remember(cudaErrorInvalidValue);
    return remember(instantiate(graph, flags, executable));
}

cudaError_t cudaGraphInstantiateWithParams(cudaGraphExec_t* executable, cudaGraph_t graph,
                                           cudaGraphInstantiateParams* parameters) {
    SIMULATED();
    if (executable == nullptr || parameters == nullptr) return remember(cudaErrorInvalidValue);
    const cudaError_t error = instantiate(graph, parameters->flags, executable);
    parameters->result_out =
        error == cudaSuccess ? cudaGraphInstantiateSuccess : cudaGraphInstantiateError;
    return remember(error);
}

cudaError_t cudaGraphExecGetFlags(cudaGraphExec_t executable, unsigned long long* flags) {
    SIMULATED();
    const Lock lock(mutex());
    const bool known = flags != nullptr && live<CUgraphExec_st>().contains(executable);
    if (!known) return remember(cudaErrorInvalidValue);
    *flags = executable->flags;
    return cudaSuccess;
}

cudaError_t cudaGraphUpload(cudaGraphExec_t executable, cudaStream_t) {
    SIMULATED();
    const Lock lock(mutex());
    return remember(live<CUgraphExec_st>().contains(executable) ? cudaSuccess
                                                                : cudaErrorInvalidValue);
}

}  // extern "C"
