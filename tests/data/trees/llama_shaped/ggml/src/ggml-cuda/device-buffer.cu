#include "common.cuh"

#ifndef GGML_CUDA_NO_VMM
#include <cuda.h>
#endif

namespace ggml_cuda {

#ifndef GGML_CUDA_NO_VMM

static void check_driver(CUresult result) {
    if (result != CUDA_SUCCESS) throw failure("the driver refused to map memory");
}

// Some virtual GPUs cannot map memory themselves.
static bool can_map(int device) {
    CUdevice handle = 0;
    int supported = 0;
    return cuDeviceGet(&handle, device) == CUDA_SUCCESS &&
           cuDeviceGetAttribute(&supported,
                                CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
                                handle) == CUDA_SUCCESS &&
           supported != 0;
}

// Returns the address of mapped pages; rounds `bytes` up to whole ones.
static void* map(int device, std::size_t& bytes) {
    CUmemAllocationProp properties = {};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    properties.location.id = device;
    std::size_t page = 0;
    check_driver(cuMemGetAllocationGranularity(&page, &properties,
                                               CU_MEM_ALLOC_GRANULARITY_RECOMMENDED));
    bytes = (bytes + page - 1) / page * page;
    CUdeviceptr address = 0;
    check_driver(cuMemAddressReserve(&address, bytes, 0, 0, 0));
    CUmemGenericAllocationHandle pages = 0;
    check_driver(cuMemCreate(&pages, bytes, &properties, 0));
    check_driver(cuMemMap(address, bytes, 0, pages, 0));
    check_driver(cuMemRelease(pages));  // the mapping keeps them
    CUmemAccessDesc access = {};
    access.location = properties.location;
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    check_driver(cuMemSetAccess(address, bytes, &access, 1));
    return reinterpret_cast<void*>(address);
}

static void unmap(void* data, std::size_t bytes) {
    const auto address = reinterpret_cast<CUdeviceptr>(data);
    cuMemUnmap(address, bytes);
    cuMemAddressFree(address, bytes);
}

#endif

device_buffer::device_buffer(std::size_t count) {
    std::size_t bytes = count * sizeof(float);
#ifndef GGML_CUDA_NO_VMM
    int device = 0;
    check(cudaGetDevice(&device));
    if (can_map(device)) {
        data_ = map(device, bytes);
        mapped_ = bytes;
        return;
    }
#endif
    check(cudaMalloc(&data_, bytes));
}

device_buffer::~device_buffer() {
#ifndef GGML_CUDA_NO_VMM
    if (mapped_ != 0) {
        unmap(data_, mapped_);
        return;
    }
#endif
    cudaFree(data_);
}

void device_buffer::upload(const float* from, std::size_t count) const {
    check(cudaMemcpy(data_, from, count * sizeof(float), cudaMemcpyHostToDevice));
}

void device_buffer::download(float* to, std::size_t count) const {
    check(cudaMemcpy(to, data_, count * sizeof(float), cudaMemcpyDeviceToHost));
}

}  // namespace ggml_cuda
