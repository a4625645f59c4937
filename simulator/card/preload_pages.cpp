// libpages.so, loaded first (LD_PRELOAD): files that are mapped are not read ahead of their use.
//
// Engines map a model's file with MAP_POPULATE, advise the kernel to read it or lock it in memory, so
// that copies to the card are fast. Copies of weights are not made here, so nearly all of these
// pages, up to the size of the model, would be resident for nothing. A page that is used is still
// read.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>

namespace {

constexpr std::size_t kLarge = 64 << 20;  // bytes; smaller mappings are left alone

bool reads_ahead(int advice) {
    return advice == MADV_WILLNEED || advice == MADV_POPULATE_READ;
}

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

void* mmap(void* address, std::size_t size, int protection, int flags, int file,
           off_t offset) noexcept {
    if (file >= 0 && size >= kLarge) flags &= ~MAP_POPULATE;
    return reinterpret_cast<void*>(
        syscall(SYS_mmap, address, size, protection, flags, file, offset));
}

void* mmap64(void* address, std::size_t size, int protection, int flags, int file,
             off64_t offset) noexcept {
    return mmap(address, size, protection, flags, file, offset);
}

int madvise(void* address, std::size_t size, int advice) noexcept {
    if (size >= kLarge && reads_ahead(advice)) return 0;
    return static_cast<int>(syscall(SYS_madvise, address, size, advice));
}

// Returns the error instead of setting errno (posix_madvise(3)).
int posix_madvise(void* address, std::size_t size, int advice) noexcept {
    if (advice == POSIX_MADV_DONTNEED) return 0;  // glibc does nothing: pages may be private
    return madvise(address, size, advice) == 0 ? 0 : errno;
}

int mlock(const void*, std::size_t) noexcept { return 0; }

}  // extern "C"
#pragma GCC visibility pop
