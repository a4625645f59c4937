// What test_computed.py runs from PTX that is not in the program: `stored CASE`.
#include <cstdio>

__global__ void add(const int* numbers, int* sum) {
    const int product = numbers[threadIdx.x] * NUMBER;  // so that programs have different code
    sum[1 + threadIdx.x] = product;
    atomicAdd(sum, product);
}

int main() {
    int numbers[64], sum = 0, *on_card = nullptr;
    for (int i = 0; i < 64; ++i) numbers[i] = i;
    cudaMalloc(&on_card, 2 * sizeof numbers + sizeof sum);
    cudaMemcpy(on_card, numbers, sizeof numbers, cudaMemcpyHostToDevice);
    cudaMemset(on_card + 64, 0, sizeof sum);
    add<<<1, 64>>>(on_card, on_card + 64);
    std::printf("launch %s\n", cudaGetErrorName(cudaGetLastError()));
    cudaMemcpy(&sum, on_card + 64, sizeof sum, cudaMemcpyDeviceToHost);
    std::printf("sum %d\n", sum);
    return 0;
}
